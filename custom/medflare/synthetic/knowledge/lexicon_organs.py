# SPDX-License-Identifier: Apache-2.0
"""Diseases of organs with one fact for each relation: symptom | treatment | test | cause | complication.

Simplified for machines, no medical advice: one value of many is the right one, and a wrong option may be true
of a patient all the same. "/" parts a name from its synonyms; a line that begins with "+" continues.
"""

from __future__ import annotations

ORGANS: dict[str, str] = {
    "cardiology": """
        heart failure / cardiac failure | orthopnea | bisoprolol | natriuretic peptide / BNP
        + | myocardial scarring | pulmonary edema
        atrial fibrillation / auricular fibrillation | palpitations | apixaban | Holter monitoring
        + | atrial enlargement | cardioembolic stroke
        myocardial infarction / heart attack | crushing chest pain | aspirin / acetylsalicylic acid
        + | troponin / cardiac troponin | coronary thrombosis | papillary muscle rupture
        stable angina / angina pectoris | exertional chest tightness | nitroglycerin / glyceryl trinitrate
        + | stress echocardiography | coronary atherosclerosis | acute coronary syndrome
        pericarditis / pericardial inflammation | pain relieved by leaning forward | colchicine
        + | electrocardiogram / ECG | coxsackievirus | cardiac tamponade
        endocarditis / infective endocarditis | new heart murmur | gentamicin
        + | transesophageal echocardiography | viridans streptococci | septic emboli
        aortic stenosis / aortic valve stenosis | exertional syncope | transcatheter valve replacement / TAVI
        + | Doppler echocardiography | valve calcification | left ventricular hypertrophy
        hypertension / high blood pressure | morning headache | amlodipine
        + | ambulatory pressure monitoring | high salt intake | hypertensive retinopathy
    """,
    "pulmonology": """
        asthma / bronchial asthma | nocturnal wheeze | salbutamol / albuterol | spirometry
        + | house dust mites | status asthmaticus
        COPD / chronic obstructive pulmonary disease | chronic productive cough | tiotropium
        + | diffusing capacity | tobacco smoking | cor pulmonale
        pulmonary embolism / lung embolism | sudden pleuritic pain | rivaroxaban | CT pulmonary angiography
        + | deep vein thrombosis | right ventricular strain
        pneumothorax / collapsed lung | absent breath sounds | chest tube drainage / tube thoracostomy
        + | chest radiograph / chest x-ray | ruptured bleb | mediastinal shift
        sarcoidosis / Boeck disease | erythema nodosum | prednisolone | angiotensin converting enzyme level
        + | noncaseating granulomas | uveitis
        pulmonary fibrosis / fibrosing alveolitis | inspiratory crackles | nintedanib | high resolution CT
        + | repeated alveolar injury | respiratory failure
        bronchiectasis / bronchial dilatation | copious purulent sputum | chest physiotherapy | bronchoscopy
        + | childhood pertussis | hemoptysis
        sleep apnea / obstructive sleep apnea | daytime sleepiness
        + | continuous positive airway pressure / CPAP | polysomnography | pharyngeal collapse
        + | pulmonary hypertension
    """,
    "gastroenterology": """
        peptic ulcer / duodenal ulcer | epigastric burning | omeprazole | gastroscopy / upper endoscopy
        + | Helicobacter pylori | gastric perforation
        reflux disease / gastroesophageal reflux | heartburn | fundoplication | esophageal pH monitoring
        + | hiatal hernia | Barrett esophagus
        celiac disease / gluten enteropathy | steatorrhea | gluten-free diet | transglutaminase antibodies
        + | gliadin | intestinal lymphoma
        Crohn disease / regional enteritis | right lower quadrant pain | infliximab | ileocolonoscopy
        + | NOD2 variants | enteric fistula
        ulcerative colitis / idiopathic proctocolitis | bloody diarrhea | mesalazine / mesalamine
        + | fecal calprotectin | mucosal autoimmunity | toxic megacolon
        acute pancreatitis / pancreatic inflammation | pain radiating to the back | intravenous fluids
        + | serum lipase / lipase | gallstones / gallbladder stones | pancreatic pseudocyst
        cirrhosis / liver cirrhosis | spider angiomas / spider naevi | spironolactone | transient elastography
        + | chronic alcohol use | esophageal varices
        cholecystitis / gallbladder inflammation | Murphy sign | cholecystectomy / gallbladder removal
        + | abdominal ultrasound | cystic duct obstruction | gallbladder empyema
    """,
    "nephrology": """
        minimal change disease / lipoid nephrosis | facial puffiness | methylprednisolone
        + | electron microscopy | podocyte injury | spontaneous peritonitis
        IgA nephropathy / Berger disease | cola-colored urine | ramipril | kidney biopsy / renal biopsy
        + | mucosal IgA deposits | end-stage kidney failure
        kidney stones / nephrolithiasis | colicky flank pain | lithotripsy / shock wave lithotripsy
        + | unenhanced CT | hypercalciuria | hydronephrosis
        pyelonephritis / kidney infection | costovertebral tenderness | ceftriaxone | urine culture
        + | Escherichia coli | perinephric abscess
        acute tubular necrosis / tubular injury | oliguria | hemodialysis | fractional sodium excretion
        + | renal ischemia | hyperkalemia
        polycystic kidney disease / polycystic kidneys | bilateral flank masses | tolvaptan | renal ultrasound
        + | PKD1 mutation | berry aneurysm
        renal artery stenosis / renovascular disease | abdominal bruit | renal angioplasty | duplex sonography
        + | fibromuscular dysplasia | resistant hypertension
        chronic kidney disease / chronic renal failure | uremic pruritus | erythropoietin / epoetin
        + | glomerular filtration rate | diabetic glomerulosclerosis | renal osteodystrophy
    """,
    "neurology": """
        Parkinson disease / paralysis agitans | resting tremor | levodopa | dopamine transporter scan
        + | nigral degeneration | recurrent falls
        multiple sclerosis / disseminated sclerosis | painful loss of vision | interferon beta
        + | oligoclonal bands | demyelination | spastic paraparesis
        migraine / hemicrania | unilateral throbbing headache | sumatriptan | headache diary
        + | CGRP release | medication overuse headache
        epilepsy / seizure disorder | tonic-clonic jerking | levetiracetam | electroencephalography / EEG
        + | hippocampal sclerosis | status epilepticus
        myasthenia gravis / autoimmune myasthenia | fatigable ptosis | pyridostigmine
        + | acetylcholine receptor antibodies | thymoma | myasthenic crisis
        Alzheimer disease / Alzheimer dementia | memory loss | donepezil | amyloid PET
        + | beta amyloid plaques | wandering
        Guillain-Barre syndrome / acute polyneuropathy | ascending weakness | plasma exchange / plasmapheresis
        + | nerve conduction studies | Campylobacter jejuni | autonomic instability
        ischemic stroke / brain infarction | sudden facial droop | alteplase | diffusion MRI
        + | carotid plaque | cerebral edema
    """,
}
"""Specialty -> its table."""
