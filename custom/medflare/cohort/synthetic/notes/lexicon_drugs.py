# SPDX-License-Identifier: Apache-2.0
"""Drugs by specialty: `names; strengths; form; route; frequency`, each a choice the prescription draws from.

Forms, routes and frequencies are classes; the house style decides how it spells them.
"""

from __future__ import annotations

from collections.abc import Mapping


def _drugs(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.strip().splitlines())


DRUGS: Mapping[str, tuple[str, ...]] = {
    "general": _drugs("""
        lisinopril=Zestril; 5,10,20,40 mg; tablet; oral; daily
        amlodipine=Norvasc; 2.5,5,10 mg; tablet; oral; daily
        acetaminophen=Tylenol=APAP; 325,500,650 mg; tablet; oral; every six hours
        ibuprofen=Motrin; 400,600,800 mg; tablet; oral; three times daily
        omeprazole=Prilosec; 20,40 mg; capsule; oral; daily
        hydrochlorothiazide=HCTZ; 12.5,25 mg; tablet; oral; daily
        simvastatin=Zocor; 10,20,40 mg; tablet; oral; nightly
        calcium; 500,600 mg; tablet; oral; twice daily
        vitamin D; 1000,2000 IU; capsule; oral; daily
        multivitamin=MVI; ; tablet; oral; daily
        docusate=Colace; 100 mg; capsule; oral; twice daily
        loratadine=Claritin; 10 mg; tablet; oral; daily
        prednisone; 5,10,20,40 mg; tablet; oral; daily
        ferrous sulfate=iron; 325 mg; tablet; oral; daily
    """),
    "cardiology": _drugs("""
        aspirin=ASA; 81,325 mg; tablet; oral; daily
        metoprolol=Lopressor; 25,50,100 mg; tablet; oral; twice daily
        carvedilol=Coreg; 3.125,6.25,12.5,25 mg; tablet; oral; twice daily
        furosemide=Lasix; 20,40,80 mg; tablet; oral; daily
        warfarin=Coumadin; 2.5,5,7.5 mg; tablet; oral; nightly
        clopidogrel=Plavix; 75 mg; tablet; oral; daily
        digoxin=dig; 0.125,0.25 mg; tablet; oral; daily
        amiodarone; 200,400 mg; tablet; oral; daily
        heparin; 5000 units; injection; subcutaneous; every eight hours
        nitroglycerin=NTG; 0.4 mg; spray; sublingual; as needed
        spironolactone=Aldactone; 25,50 mg; tablet; oral; daily
        apixaban=Eliquis; 2.5,5 mg; tablet; oral; twice daily
        atorvastatin=Lipitor; 10,20,40,80 mg; tablet; oral; nightly
        diltiazem; 120,180,240 mg; capsule; oral; daily
    """),
    "pulmonology": _drugs("""
        albuterol=Ventolin; 90 mcg; inhaler; inhaled; as needed
        tiotropium=Spiriva; 18 mcg; inhaler; inhaled; daily
        fluticasone=Flovent; 110,220 mcg; inhaler; inhaled; twice daily
        montelukast=Singulair; 10 mg; tablet; oral; nightly
        azithromycin=Zithromax; 250,500 mg; tablet; oral; daily
        methylprednisolone=Solu-Medrol; 40,60,125 mg; injection; intravenous; every eight hours
        guaifenesin; 200,600 mg; syrup; oral; twice daily
        levofloxacin=Levaquin; 500,750 mg; tablet; oral; daily
        ipratropium=Atrovent; 0.5 mg; solution; inhaled; every six hours
        budesonide=Pulmicort; 180 mcg; inhaler; inhaled; twice daily
        enoxaparin=Lovenox; 40,60,80 mg; injection; subcutaneous; twice daily
    """),
    "endocrinology": _drugs("""
        metformin=Glucophage; 500,850,1000 mg; tablet; oral; twice daily
        insulin glargine=Lantus; 10,20,30 units; injection; subcutaneous; nightly
        insulin lispro=Humalog; 4,6,8 units; injection; subcutaneous; three times daily
        levothyroxine=Synthroid; 25,50,88,112 mcg; tablet; oral; every morning
        glipizide=Glucotrol; 5,10 mg; tablet; oral; daily
        methimazole; 5,10 mg; tablet; oral; daily
        alendronate=Fosamax; 35,70 mg; tablet; oral; once a week
        hydrocortisone; 10,20 mg; tablet; oral; twice daily
        empagliflozin=Jardiance; 10,25 mg; tablet; oral; daily
        semaglutide=Ozempic; 0.25,0.5,1 mg; injection; subcutaneous; once a week
        gabapentin=Neurontin; 100,300,600 mg; capsule; oral; three times daily
    """),
    "oncology": _drugs("""
        paclitaxel=Taxol; 175 mg/m2; infusion; intravenous; every three weeks
        tamoxifen; 20 mg; tablet; oral; daily
        ondansetron=Zofran; 4,8 mg; tablet; oral; as needed
        filgrastim=Neupogen; 300,480 mcg; injection; subcutaneous; daily
        capecitabine=Xeloda; 1000,1500 mg; tablet; oral; twice daily
        rituximab=Rituxan; 375 mg/m2; infusion; intravenous; every three weeks
        dexamethasone=Decadron; 4,8 mg; tablet; oral; daily
        morphine; 15,30 mg; tablet; oral; twice daily
        oxycodone; 5,10 mg; tablet; oral; every four hours
        letrozole=Femara; 2.5 mg; tablet; oral; daily
        cisplatin; 75 mg/m2; infusion; intravenous; every three weeks
        fentanyl; 25,50,75 mcg; patch; topical; every three days
        leuprolide=Lupron; 7.5,22.5 mg; injection; intramuscular; once a month
        imatinib=Gleevec; 400 mg; tablet; oral; daily
        nystatin; 5 mL; suspension; oral; four times daily
    """),
    "gastroenterology": _drugs("""
        pantoprazole=Protonix; 20,40 mg; tablet; oral; daily
        mesalamine=Asacol; 800,1200 mg; tablet; oral; three times daily
        lactulose; 15,30 mL; syrup; oral; three times daily
        infliximab=Remicade; 5 mg/kg; infusion; intravenous; every eight weeks
        metoclopramide=Reglan; 5,10 mg; tablet; oral; three times daily
        ursodiol; 300 mg; capsule; oral; twice daily
        rifaximin; 550 mg; tablet; oral; twice daily
        azathioprine=Imuran; 50,100 mg; tablet; oral; daily
        loperamide=Imodium; 2 mg; capsule; oral; as needed
        famotidine=Pepcid; 20,40 mg; tablet; oral; twice daily
        propranolol=Inderal; 10,20,40 mg; tablet; oral; twice daily
    """),
    "nephrology": _drugs("""
        sevelamer=Renvela; 800 mg; tablet; oral; three times daily
        epoetin alfa=Procrit; 4000,10000 units; injection; subcutaneous; once a week
        calcitriol; 0.25,0.5 mcg; capsule; oral; daily
        tacrolimus=Prograf; 1,2 mg; capsule; oral; twice daily
        mycophenolate=CellCept; 500,1000 mg; tablet; oral; twice daily
        sodium bicarbonate; 650 mg; tablet; oral; twice daily
        potassium chloride=KCl; 10,20 mEq; tablet; oral; daily
        tamsulosin=Flomax; 0.4 mg; capsule; oral; nightly
        bumetanide=Bumex; 1,2 mg; tablet; oral; twice daily
        losartan=Cozaar; 25,50,100 mg; tablet; oral; daily
        allopurinol; 100,300 mg; tablet; oral; daily
    """),
    "orthopaedics": _drugs("""
        naproxen=Naprosyn; 250,500 mg; tablet; oral; twice daily
        celecoxib=Celebrex; 100,200 mg; capsule; oral; twice daily
        cyclobenzaprine=Flexeril; 5,10 mg; tablet; oral; three times daily
        hydrocodone=Norco; 5,7.5 mg; tablet; oral; every six hours
        tramadol=Ultram; 50,100 mg; tablet; oral; every six hours
        meloxicam=Mobic; 7.5,15 mg; tablet; oral; daily
        diclofenac=Voltaren; 1 %; gel; topical; four times daily
        triamcinolone=Kenalog; 40 mg; injection; intraarticular; once
        lidocaine; 5 %; patch; topical; daily
        methocarbamol=Robaxin; 500,750 mg; tablet; oral; four times daily
        cefazolin=Ancef; 1,2 g; injection; intravenous; every eight hours
        colchicine; 0.6 mg; tablet; oral; twice daily
    """),
    "psychiatry": _drugs("""
        sertraline=Zoloft; 25,50,100 mg; tablet; oral; daily
        lithium; 300,450,600 mg; capsule; oral; twice daily
        quetiapine=Seroquel; 25,50,100,300 mg; tablet; oral; nightly
        escitalopram=Lexapro; 5,10,20 mg; tablet; oral; daily
        lorazepam=Ativan; 0.5,1,2 mg; tablet; oral; as needed
        olanzapine=Zyprexa; 5,10,15 mg; tablet; oral; nightly
        trazodone; 50,100 mg; tablet; oral; nightly
        haloperidol=Haldol; 2,5 mg; injection; intramuscular; as needed
        bupropion=Wellbutrin; 150,300 mg; tablet; oral; every morning
        aripiprazole=Abilify; 5,10,15 mg; tablet; oral; daily
        buprenorphine=Suboxone; 4,8 mg; film; sublingual; daily
        naltrexone; 50 mg; tablet; oral; daily
        valproate=Depakote; 250,500 mg; tablet; oral; twice daily
        mirtazapine=Remeron; 15,30 mg; tablet; oral; nightly
    """),
    "neurology": _drugs("""
        levetiracetam=Keppra; 500,750,1000 mg; tablet; oral; twice daily
        sumatriptan=Imitrex; 25,50,100 mg; tablet; oral; as needed
        topiramate=Topamax; 25,50,100 mg; tablet; oral; twice daily
        donepezil=Aricept; 5,10 mg; tablet; oral; nightly
        carbidopa-levodopa=Sinemet; 25-100 mg; tablet; oral; three times daily
        phenytoin=Dilantin; 100,300 mg; capsule; oral; three times daily
        baclofen; 10,20 mg; tablet; oral; three times daily
        pregabalin=Lyrica; 50,75,150 mg; capsule; oral; twice daily
        interferon beta=Avonex; 30 mcg; injection; intramuscular; once a week
        amitriptyline=Elavil; 10,25,50 mg; tablet; oral; nightly
        alteplase=tPA; 0.9 mg/kg; infusion; intravenous; once
        pyridostigmine; 60 mg; tablet; oral; four times daily
    """),
    "infection": _drugs("""
        amoxicillin=Amoxil; 250,500,875 mg; capsule; oral; twice daily
        vancomycin=vanc; 1,1.25,1.5 g; infusion; intravenous; every twelve hours
        ceftriaxone=Rocephin; 1,2 g; infusion; intravenous; daily
        doxycycline; 100 mg; capsule; oral; twice daily
        ciprofloxacin=Cipro; 250,500 mg; tablet; oral; twice daily
        metronidazole=Flagyl; 250,500 mg; tablet; oral; three times daily
        trimethoprim-sulfamethoxazole=Bactrim; 160-800 mg; tablet; oral; twice daily
        acyclovir=Zovirax; 400,800 mg; tablet; oral; five times daily
        fluconazole=Diflucan; 100,150,200 mg; tablet; oral; daily
        oseltamivir=Tamiflu; 75 mg; capsule; oral; twice daily
        cephalexin=Keflex; 250,500 mg; capsule; oral; four times daily
        isoniazid=INH; 300 mg; tablet; oral; daily
        mupirocin=Bactroban; 2 %; ointment; topical; three times daily
        piperacillin-tazobactam=Zosyn; 3.375,4.5 g; infusion; intravenous; every six hours
    """),
}
