# SPDX-License-Identifier: Apache-2.0
"""What examinations find.

IMAGING: `names | findings | what it shows to be absent`, items separated by ";"; {side} and {size} are drawn,
_body location_, ^severity^ and *course* are marked; "a(n)" is the article.
"""

from __future__ import annotations

from collections.abc import Mapping

from .tables import lines

IMAGING: Mapping[str, tuple[str, ...]] = {
    "general": lines("""
        chest x-ray=CXR | a(n) {size} _{side} lower lobe_ infiltrate; a(n) ^small^ _{side} pleural_
        + effusion; cardiomegaly
        + | pneumothorax; infiltrate; _pleural_ effusion; acute disease
        CT of the abdomen and pelvis=CT A/P | a(n) {size} cyst in the _{side} kidney_; diverticulosis;
        + a(n) {size} _liver_ lesion
        + | free air; _bowel_ obstruction; abscess; adenopathy
        ultrasound of the abdomen=abd US | gallstones; ^mild^ fatty _liver_; a(n) {size} _{side} renal_
        + cyst | hydronephrosis; ascites
        electrocardiogram=EKG=ECG | sinus tachycardia; nonspecific ST changes; left _ventricular_
        + hypertrophy=LVH
        + | ischemia; acute ST elevation
    """),
    "cardiology": lines("""
        echocardiogram=echo=TTE | ^moderate^ _mitral_ regurgitation; left _ventricular_ hypertrophy;
        + ^severe^ _aortic_ stenosis;
        + a(n) ^small^ _pericardial_ effusion; _septal_ hypokinesis; ^mild^ diastolic dysfunction |
        + _pericardial_ effusion; thrombus; vegetations
        coronary angiogram=cath | a(n) 80% stenosis of the _left anterior descending artery_; ^severe^
        + three-vessel disease;
        + occlusion of the _right coronary artery_; in-stent restenosis | obstructive disease; restenosis;
        + dissection
        stress test=ETT | ST depression; exertional ectopy; reversible _inferior wall_ ischemia |
        + ischemia; arrhythmia; _chest_ pain
        Holter monitor=Holter | frequent ectopy; nonsustained _ventricular_ tachycardia=NSVT; long pauses
        + | pauses; arrhythmia
        nuclear stress test=MIBI | a(n) fixed _apical_ defect; reversible _anterior wall_ ischemia |
        + ischemia; perfusion defect
        carotid duplex | ^50-69%^ _{side} internal carotid_ stenosis; plaque in the _{side} carotid bulb_
        + | stenosis; dissection
        cardiac MRI=CMR | _{side} ventricular_ scar; late enhancement of the _lateral wall_; a(n) ^large^
        + _apical_ aneurysm | infiltration; thrombus
        CT angiogram of the aorta=CTA aorta | a(n) {size} _infrarenal_ aneurysm; a(n) penetrating ulcer of
        + the _aortic arch_ | dissection; leak
    """),
    "pulmonology": lines("""
        chest CT=CT chest | a(n) {size} nodule in the _{side} upper lobe_; ground-glass opacities=GGO;
        + _bibasilar_ honeycombing;
        + *new* _mediastinal_ adenopathy; _{side} lower lobe_ consolidation; _apical_ scarring |
        + _pulmonary_ embolism; adenopathy; consolidation
        CT angiogram of the chest=CTA chest | a(n) filling defect in the _{side} pulmonary artery_;
        + _{side} segmental_ emboli;
        + ^right ventricular^ strain | _pulmonary_ embolism=PE; dissection
        bronchoscopy=bronch | thick secretions in the _{side} mainstem bronchus_; a(n) _{side} upper lobe_
        + lesion; erythematous _airways_
        + | bleeding; endobronchial lesion
        pulmonary function tests=PFTs | ^moderate^ obstruction; ^mild^ restriction; reduced diffusion
        + capacity | obstruction; restriction
        V/Q scan | a(n) mismatched _{side} lower lobe_ defect; matched defects in the _{side} lung_ |
        + perfusion defect
    """),
    "endocrinology": lines("""
        thyroid ultrasound=thyroid US | a(n) {size} nodule in the _{side} thyroid lobe_; a(n)
        + heterogeneous _gland_;
        + *enlarging* _{side} lobe_ cysts | adenopathy; calcifications; suspicious nodule
        DEXA scan=DEXA | osteopenia of the _{side} hip_; osteoporosis of the _lumbar spine_ |
        + osteoporosis; bone loss
        pituitary MRI | a(n) {size} _pituitary_ adenoma; _stalk_ thickening; *stable* _sellar_ mass |
        + _chiasm_ compression; adenoma
        dilated eye examination | ^mild^ nonproliferative retinopathy; _{side} macular_ edema; _retinal_
        + hemorrhages | retinopathy; _macular_ edema
        CT of the adrenals | a(n) {size} _{side} adrenal_ nodule; _{side} adrenal_ hyperplasia | adenoma;
        + hemorrhage
    """),
    "oncology": lines("""
        PET scan=PET | uptake in the _{side} axilla_; *new* _hepatic_ metastases; avid _{side} hilar_
        + nodes; a(n) {size} _{side} lung_ nodule;
        + *progressing* _bone_ disease | distant metastases; recurrence; avid disease
        mammogram=mammo | a(n) {size} mass in the _{side} breast_; clustered microcalcifications of the
        + _{side} breast_;
        + a(n) asymmetric _{side} breast_ density | malignancy; calcifications
        restaging CT | *shrinking* _{side} lung_ nodules; *new* _liver_ lesions; *stable*
        + _retroperitoneal_ adenopathy; a(n) {size} _{side} adrenal_ mass
        + | new disease; metastases; ascites
        bone scan | uptake in the _{side} iliac bone_; lesions of the _thoracic spine_; a(n) focus in the
        + _{side} seventh rib_ | bone metastases; fracture
        core needle biopsy=CNB | invasive ductal carcinoma of the _{side} breast_; atypical hyperplasia;
        + ^high-grade^ carcinoma in situ | malignancy; invasion
        bone marrow biopsy=BMBx | hypercellular _marrow_; ^30%^ plasma cell infiltration; residual
        + leukemia | blasts; dysplasia; involvement
        MRI of the liver | a(n) {size} lesion in the _{side} hepatic lobe_; multiple metastases; _biliary_
        + dilatation | recurrence; thrombosis
    """),
    "gastroenterology": lines("""
        colonoscopy=c-scope | a(n) {size} polyp in the _sigmoid colon_; pancolitis; _internal_
        + hemorrhoids; a(n) ulcerated mass in the _cecum_;
        + ^mild^ _terminal ileal_ inflammation | polyps; bleeding; inflammation
        upper endoscopy=EGD | erosive gastritis; a(n) {size} _duodenal_ ulcer; ^grade II^ _esophageal_
        + varices; a(n) _hiatal_ hernia;
        + ^mild^ esophagitis | bleeding; varices; ulcer
        right upper quadrant ultrasound=RUQ US | gallstones; _gallbladder_ wall thickening; a(n) dilated
        + _common bile duct_; ^moderate^ ascites
        + | stones; ductal dilatation; cholecystitis
        MRCP | a(n) {size} stone in the _common bile duct_; a(n) _pancreatic duct_ stricture; a(n) {size}
        + cyst of the _pancreatic tail_ | choledocholithiasis; stricture
        liver biopsy | ^stage 3^ fibrosis; ^marked^ steatosis; _portal_ inflammation | cirrhosis; iron
        + overload
        CT enterography=CTE | wall thickening of the _distal ileum_; a(n) {size} abscess near the _cecum_;
        + a(n) _small bowel_ stricture | fistula; abscess; obstruction
        barium swallow | a(n) stricture of the _distal esophagus_; delayed _esophageal_ emptying; a(n)
        + _Zenker_ diverticulum | aspiration; obstruction
    """),
    "nephrology": lines("""
        renal ultrasound=renal US | ^mild^ _{side}_ hydronephrosis; a(n) {size} cyst in the _{side}
        + kidney_; small echogenic _kidneys_;
        + a(n) {size} stone in the _{side} renal pelvis_ | hydronephrosis; stones; mass
        kidney biopsy | crescentic glomerulonephritis; ^moderate^ tubular atrophy; ^mild^ mesangial
        + expansion; _interstitial_ fibrosis | rejection; vasculitis
        CT urogram | a(n) {size} stone in the _{side} ureter_; a(n) {size} mass in the _{side} kidney_;
        + _{side} renal_ scarring | obstruction; filling defect
        renal angiogram | ^severe^ _{side} renal artery_ stenosis; a(n) _{side} renal_ aneurysm |
        + stenosis; thrombosis
        transplant duplex | a(n) {size} fluid collection around the _graft_; *elevated* resistive indices;
        + ^mild^ _transplant_ hydronephrosis | stenosis; thrombosis
    """),
    "orthopaedics": lines("""
        MRI of the {side} knee | a(n) tear of the _medial meniscus_; ^moderate^ chondromalacia; a(n)
        + {size} _Baker_ cyst; _bone marrow_ edema;
        + a(n) complete tear of the _anterior cruciate ligament_ | fracture; ligament tear; effusion
        MRI of the {side} shoulder | a(n) full-thickness tear of the _supraspinatus tendon_; _labral_
        + fraying; ^severe^ _acromioclavicular_ arthrosis;
        + _biceps_ tendinosis | rotator cuff tear; dislocation
        x-ray of the {side} hip=hip XR | ^severe^ joint space narrowing; a(n) nondisplaced _femoral neck_
        + fracture; osteophytes of the _acetabulum_ | fracture; loosening
        x-ray of the {side} wrist=wrist XR | a(n) displaced _distal radius_ fracture; a(n) _scaphoid_
        + fracture; widening of the _scapholunate interval_ | fracture; dislocation
        x-ray of the {side} ankle=ankle XR | a(n) _lateral malleolus_ fracture; soft tissue swelling; a(n)
        + {size} _calcaneal_ spur | fracture; widening of the _mortise_
        MRI of the lumbar spine=L-spine MRI | a(n) _L4-5_ disk protrusion; ^severe^ _foraminal_ stenosis;
        + ^moderate^ _facet_ arthropathy;
        + _L5-S1_ spondylolisthesis | cord compression; infection; fracture
        nerve conduction study=NCS | ^moderate^ _{side} median_ neuropathy; _{side} ulnar_ slowing at the
        + elbow; *chronic* _L5_ radiculopathy | neuropathy; radiculopathy
    """),
    "psychiatry": lines("""
        mental status examination=MSE | flat affect; pressured speech; poor insight; a(n) anxious mood;
        + tangential thinking; psychomotor slowing
        + | suicidal ideation=SI; delusions; hallucinations; homicidal ideation=HI
        neuropsychological testing | impaired attention; ^mild^ executive dysfunction; slowed processing |
        + dementia; malingering
        head CT=CTH | ^mild^ _cerebral_ atrophy; a(n) *old* _{side} frontal_ contusion | hemorrhage; mass
        suicide risk assessment | passive death wishes; hopelessness; access to means | suicidal plan; intent
    """),
    "neurology": lines("""
        MRI of the brain=MRI brain | a(n) *acute* infarct in the _{side} thalamus_; _periventricular_
        + white matter lesions; ^mild^ _cerebral_ atrophy;
        + a(n) {size} _{side} frontal_ meningioma; *new* enhancing lesions of the _corpus callosum_ |
        + hemorrhage; mass; acute infarct
        head CT=CTH | a(n) {size} _{side} subdural_ hematoma; *old* _{side} parietal_ infarct; _frontal_
        + encephalomalacia; a(n) *acute* _{side} basal ganglia_ bleed
        + | bleed; midline shift; fracture
        EEG | _{side} temporal_ spikes; generalized slowing; _{side} frontal_ sharp waves; subclinical
        + seizures | epileptiform activity; seizures
        electromyography=EMG | ^moderate^ sensory neuropathy; _{side} L5_ radiculopathy; active
        + denervation of the _{side} deltoid_ | myopathy; denervation
        CT angiogram of the neck=CTA neck | ^severe^ _{side} carotid_ stenosis; a(n) _{side} vertebral
        + artery_ dissection; a(n) {size} _basilar tip_ aneurysm | dissection; occlusion
        MRI of the cervical spine=C-spine MRI | a(n) _C5-6_ disk herniation; *chronic* _cord_ signal
        + change; ^mild^ _canal_ stenosis | cord compression; demyelination
    """),
    "infection": lines("""
        blood cultures=BCx | gram-positive cocci; MRSA bacteremia; E. coli; viridans streptococci |
        + growth; yeast
        urine culture=UCx | E. coli; Klebsiella; enterococcus; mixed flora | growth; resistance
        MRI of the {side} foot | osteomyelitis of the _{side} fifth metatarsal_; _plantar_ abscess;
        + _{side} heel_ cellulitis | osteomyelitis; abscess
        CT of the neck=CT neck | a(n) {size} _{side} peritonsillar_ abscess; _{side} cervical_ adenopathy;
        + _retropharyngeal_ edema | abscess; airway compromise
        wound culture=WCx | Pseudomonas; methicillin-resistant staph=MRSA; heavy staph growth | growth;
        + anaerobes
        chest CT=CT chest | a(n) cavity in the _{side} upper lobe_; _tree-in-bud_ opacities; a(n)
        + loculated _{side} empyema_ | cavitation; empyema
        sinus CT | _{side} maxillary_ sinusitis; opacification of the _{side} ethmoid_ cells | sinusitis;
        + _orbital_ extension
    """),
}
SIZES = ("", "4-mm", "6-mm", "8-mm", "1-cm", "1.5-cm", "2-cm", "2.4-cm", "3-cm")
