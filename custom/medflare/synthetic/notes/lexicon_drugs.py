# SPDX-License-Identifier: Apache-2.0
"""Drugs by specialty: `names; strengths; form; route; frequency; what it is given for`.

Forms, routes and frequencies are classes; the house style decides how it spells them.
"""

from __future__ import annotations

from collections.abc import Mapping

from .tables import lines

DRUGS: Mapping[str, tuple[str, ...]] = {
    "general": lines("""
        lisinopril=Zestril; 5,10,20,40 mg; tablet; oral; daily; hypertension=HTN
        amlodipine=Norvasc; 2.5,5,10 mg; tablet; oral; daily; hypertension=HTN
        acetaminophen=Tylenol=APAP; 325,500,650 mg; tablet; oral; every six hours; pain
        ibuprofen=Motrin; 400,600,800 mg; tablet; oral; three times daily; pain
        omeprazole=Prilosec; 20,40 mg; capsule; oral; daily; reflux=GERD
        hydrochlorothiazide=HCTZ; 12.5,25 mg; tablet; oral; daily; hypertension=HTN
        simvastatin=Zocor; 10,20,40 mg; tablet; oral; nightly; hyperlipidemia=HLD
        calcium; 500,600 mg; tablet; oral; twice daily; osteopenia
        vitamin D; 1000,2000 IU; capsule; oral; daily; vitamin D deficiency
        multivitamin=MVI; ; tablet; oral; daily; malnutrition
        docusate=Colace; 100 mg; capsule; oral; twice daily; constipation
        loratadine=Claritin; 10 mg; tablet; oral; daily; seasonal allergies
        prednisone; 5,10,20,40 mg; tablet; oral; daily; _joint_ inflammation
        ferrous sulfate=iron; 325 mg; tablet; oral; daily; iron deficiency anemia=IDA
    """),
    "cardiology": lines("""
        aspirin=ASA; 81,325 mg; tablet; oral; daily; _coronary artery_ disease=CAD
        metoprolol=Lopressor; 25,50,100 mg; tablet; oral; twice daily; _atrial_ fibrillation=AF
        carvedilol=Coreg; 3.125,6.25,12.5,25 mg; tablet; oral; twice daily; _heart_ failure=CHF
        furosemide=Lasix; 20,40,80 mg; tablet; oral; daily; volume overload
        warfarin=Coumadin; 2.5,5,7.5 mg; tablet; oral; nightly; _atrial_ fibrillation=afib
        clopidogrel=Plavix; 75 mg; tablet; oral; daily; _coronary artery_ disease=CAD
        digoxin=dig; 0.125,0.25 mg; tablet; oral; daily; _atrial_ fibrillation=AF
        amiodarone; 200,400 mg; tablet; oral; daily; _ventricular_ tachycardia=VT
        heparin; 5000 units; injection; subcutaneous; every eight hours; _deep vein_ thrombosis=DVT
        nitroglycerin=NTG; 0.4 mg; spray; sublingual; as needed; _chest_ pain=CP
        spironolactone=Aldactone; 25,50 mg; tablet; oral; daily; _heart_ failure=CHF
        apixaban=Eliquis; 2.5,5 mg; tablet; oral; twice daily; _atrial_ fibrillation=afib
        atorvastatin=Lipitor; 10,20,40,80 mg; tablet; oral; nightly; hyperlipidemia=HLD
        diltiazem; 120,180,240 mg; capsule; oral; daily; rapid _ventricular_ response=RVR
    """),
    "pulmonology": lines("""
        albuterol=Ventolin; 90 mcg; inhaler; inhaled; as needed; wheezing
        tiotropium=Spiriva; 18 mcg; inhaler; inhaled; daily; emphysema
        fluticasone=Flovent; 110,220 mcg; inhaler; inhaled; twice daily; asthma
        montelukast=Singulair; 10 mg; tablet; oral; nightly; asthma
        azithromycin=Zithromax; 250,500 mg; tablet; oral; daily; bronchitis
        methylprednisolone=Solu-Medrol; 40,60,125 mg; injection; intravenous; every eight hours;
        + asthma exacerbation
        guaifenesin; 200,600 mg; syrup; oral; twice daily; cough
        levofloxacin=Levaquin; 500,750 mg; tablet; oral; daily; pneumonia=PNA
        ipratropium=Atrovent; 0.5 mg; solution; inhaled; every six hours; bronchospasm
        budesonide=Pulmicort; 180 mcg; inhaler; inhaled; twice daily; asthma
        enoxaparin=Lovenox; 40,60,80 mg; injection; subcutaneous; twice daily; _pulmonary_ embolism=PE
    """),
    "endocrinology": lines("""
        metformin=Glucophage; 500,850,1000 mg; tablet; oral; twice daily; type 2 diabetes=T2DM
        insulin glargine=Lantus; 10,20,30 units; injection; subcutaneous; nightly; diabetes=DM
        insulin lispro=Humalog; 4,6,8 units; injection; subcutaneous; three times daily; hyperglycemia
        levothyroxine=Synthroid; 25,50,88,112 mcg; tablet; oral; every morning; hypothyroidism
        glipizide=Glucotrol; 5,10 mg; tablet; oral; daily; type 2 diabetes=T2DM
        methimazole; 5,10 mg; tablet; oral; daily; hyperthyroidism
        alendronate=Fosamax; 35,70 mg; tablet; oral; once a week; osteoporosis
        hydrocortisone; 10,20 mg; tablet; oral; twice daily; _adrenal_ insufficiency=AI
        empagliflozin=Jardiance; 10,25 mg; tablet; oral; daily; type 2 diabetes=T2DM
        semaglutide=Ozempic; 0.25,0.5,1 mg; injection; subcutaneous; once a week; obesity
        gabapentin=Neurontin; 100,300,600 mg; capsule; oral; three times daily; neuropathy
    """),
    "oncology": lines("""
        paclitaxel=Taxol; 175 mg/m2; infusion; intravenous; every three weeks; _breast_ cancer=breast CA
        tamoxifen; 20 mg; tablet; oral; daily; _breast_ cancer=breast CA
        ondansetron=Zofran; 4,8 mg; tablet; oral; as needed; nausea
        filgrastim=Neupogen; 300,480 mcg; injection; subcutaneous; daily; neutropenia
        capecitabine=Xeloda; 1000,1500 mg; tablet; oral; twice daily; _colon_ cancer=colon CA
        rituximab=Rituxan; 375 mg/m2; infusion; intravenous; every three weeks; lymphoma
        dexamethasone=Decadron; 4,8 mg; tablet; oral; daily; _brain_ metastases=brain mets
        morphine; 15,30 mg; tablet; oral; twice daily; cancer pain
        oxycodone; 5,10 mg; tablet; oral; every four hours; breakthrough pain
        letrozole=Femara; 2.5 mg; tablet; oral; daily; _breast_ cancer=breast CA
        cisplatin; 75 mg/m2; infusion; intravenous; every three weeks; _lung_ cancer=lung CA
        fentanyl; 25,50,75 mcg; patch; topical; every three days; cancer pain
        leuprolide=Lupron; 7.5,22.5 mg; injection; intramuscular; once a month; _prostate_ cancer=prostate CA
        imatinib=Gleevec; 400 mg; tablet; oral; daily; gastrointestinal stromal tumor=GIST
        nystatin; 5 mL; suspension; oral; four times daily; _oral_ thrush
    """),
    "gastroenterology": lines("""
        pantoprazole=Protonix; 20,40 mg; tablet; oral; daily; peptic ulcer disease=PUD
        mesalamine=Asacol; 800,1200 mg; tablet; oral; three times daily; ulcerative colitis=UC
        lactulose; 15,30 mL; syrup; oral; three times daily; _hepatic_ encephalopathy=HE
        infliximab=Remicade; 5 mg/kg; infusion; intravenous; every eight weeks; Crohn disease
        metoclopramide=Reglan; 5,10 mg; tablet; oral; three times daily; gastroparesis
        ursodiol; 300 mg; capsule; oral; twice daily; primary _biliary_ cholangitis=PBC
        rifaximin; 550 mg; tablet; oral; twice daily; _hepatic_ encephalopathy=HE
        azathioprine=Imuran; 50,100 mg; tablet; oral; daily; Crohn disease
        loperamide=Imodium; 2 mg; capsule; oral; as needed; diarrhea
        famotidine=Pepcid; 20,40 mg; tablet; oral; twice daily; heartburn
        propranolol=Inderal; 10,20,40 mg; tablet; oral; twice daily; _esophageal_ varices
    """),
    "nephrology": lines("""
        sevelamer=Renvela; 800 mg; tablet; oral; three times daily; hyperphosphatemia
        epoetin alfa=Procrit; 4000,10000 units; injection; subcutaneous; once a week;
        + anemia of _kidney_ disease
        calcitriol; 0.25,0.5 mcg; capsule; oral; daily; secondary hyperparathyroidism
        tacrolimus=Prograf; 1,2 mg; capsule; oral; twice daily; transplant rejection
        mycophenolate=CellCept; 500,1000 mg; tablet; oral; twice daily; lupus nephritis
        sodium bicarbonate; 650 mg; tablet; oral; twice daily; metabolic acidosis
        potassium chloride=KCl; 10,20 mEq; tablet; oral; daily; hypokalemia
        tamsulosin=Flomax; 0.4 mg; capsule; oral; nightly; _ureteral_ stone
        bumetanide=Bumex; 1,2 mg; tablet; oral; twice daily; anasarca
        losartan=Cozaar; 25,50,100 mg; tablet; oral; daily; proteinuria
        allopurinol; 100,300 mg; tablet; oral; daily; gout
    """),
    "orthopaedics": lines("""
        naproxen=Naprosyn; 250,500 mg; tablet; oral; twice daily; _back_ pain
        celecoxib=Celebrex; 100,200 mg; capsule; oral; twice daily; osteoarthritis=OA
        cyclobenzaprine=Flexeril; 5,10 mg; tablet; oral; three times daily; muscle spasm
        hydrocodone=Norco; 5,7.5 mg; tablet; oral; every six hours; postoperative pain
        tramadol=Ultram; 50,100 mg; tablet; oral; every six hours; _knee_ pain
        meloxicam=Mobic; 7.5,15 mg; tablet; oral; daily; osteoarthritis=OA
        diclofenac=Voltaren; 1 %; gel; topical; four times daily; _knee_ pain
        leflunomide=Arava; 10,20 mg; tablet; oral; daily; rheumatoid arthritis=RA
        lidocaine; 5 %; patch; topical; daily; _back_ pain
        methocarbamol=Robaxin; 500,750 mg; tablet; oral; four times daily; muscle spasm
        indomethacin=Indocin; 25,50 mg; capsule; oral; three times daily; gout flare
        colchicine; 0.6 mg; tablet; oral; twice daily; gout
    """),
    "psychiatry": lines("""
        sertraline=Zoloft; 25,50,100 mg; tablet; oral; daily; depression
        lithium; 300,450,600 mg; capsule; oral; twice daily; bipolar disorder=BPAD
        quetiapine=Seroquel; 25,50,100,300 mg; tablet; oral; nightly; mania
        escitalopram=Lexapro; 5,10,20 mg; tablet; oral; daily; anxiety
        lorazepam=Ativan; 0.5,1,2 mg; tablet; oral; as needed; panic attacks
        olanzapine=Zyprexa; 5,10,15 mg; tablet; oral; nightly; psychosis
        trazodone; 50,100 mg; tablet; oral; nightly; insomnia
        haloperidol=Haldol; 2,5 mg; injection; intramuscular; as needed; agitation
        bupropion=Wellbutrin; 150,300 mg; tablet; oral; every morning; depression
        aripiprazole=Abilify; 5,10,15 mg; tablet; oral; daily; schizophrenia
        buprenorphine=Suboxone; 4,8 mg; film; sublingual; daily; opioid dependence=OUD
        naltrexone; 50 mg; tablet; oral; daily; alcohol use disorder=AUD
        valproate=Depakote; 250,500 mg; tablet; oral; twice daily; mania
        mirtazapine=Remeron; 15,30 mg; tablet; oral; nightly; depression
    """),
    "neurology": lines("""
        levetiracetam=Keppra; 500,750,1000 mg; tablet; oral; twice daily; seizures=sz
        sumatriptan=Imitrex; 25,50,100 mg; tablet; oral; as needed; migraine
        topiramate=Topamax; 25,50,100 mg; tablet; oral; twice daily; migraine
        donepezil=Aricept; 5,10 mg; tablet; oral; nightly; memory loss
        carbidopa-levodopa=Sinemet; 25-100 mg; tablet; oral; three times daily; Parkinson disease=PD
        phenytoin=Dilantin; 100,300 mg; capsule; oral; three times daily; seizures=sz
        baclofen; 10,20 mg; tablet; oral; three times daily; spasticity
        pregabalin=Lyrica; 50,75,150 mg; capsule; oral; twice daily; neuropathic pain
        interferon beta=Avonex; 30 mcg; injection; intramuscular; once a week; multiple sclerosis=MS
        amitriptyline=Elavil; 10,25,50 mg; tablet; oral; nightly; tension headaches
        clonazepam=Klonopin; 0.5,1 mg; tablet; oral; twice daily; restless _legs_ syndrome=RLS
        pyridostigmine; 60 mg; tablet; oral; four times daily; myasthenia gravis
    """),
    "infection": lines("""
        amoxicillin=Amoxil; 250,500,875 mg; capsule; oral; twice daily; _ear_ infection
        vancomycin=vanc; 1,1.25,1.5 g; infusion; intravenous; every twelve hours; MRSA bacteremia
        ceftriaxone=Rocephin; 1,2 g; infusion; intravenous; daily; pyelonephritis=pyelo
        doxycycline; 100 mg; capsule; oral; twice daily; Lyme disease
        ciprofloxacin=Cipro; 250,500 mg; tablet; oral; twice daily; _urinary tract_ infection=UTI
        metronidazole=Flagyl; 250,500 mg; tablet; oral; three times daily; C. difficile colitis=C. diff
        trimethoprim-sulfamethoxazole=Bactrim; 160-800 mg; tablet; oral; twice daily;
        + _urinary tract_ infection=UTI
        acyclovir=Zovirax; 400,800 mg; tablet; oral; five times daily; shingles
        fluconazole=Diflucan; 100,150,200 mg; tablet; oral; daily; _esophageal_ candidiasis
        oseltamivir=Tamiflu; 75 mg; capsule; oral; twice daily; influenza=flu
        cephalexin=Keflex; 250,500 mg; capsule; oral; four times daily; cellulitis
        isoniazid=INH; 300 mg; tablet; oral; daily; *latent* tuberculosis=LTBI
        mupirocin=Bactroban; 2 %; ointment; topical; three times daily; impetigo
        piperacillin-tazobactam=Zosyn; 3.375,4.5 g; infusion; intravenous; every six hours; sepsis
    """),
}
