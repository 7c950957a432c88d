# SPDX-License-Identifier: Apache-2.0
"""Diseases of more than one organ, in the columns of `lexicon_organs`."""

from __future__ import annotations

SYSTEMS: dict[str, str] = {
    "endocrinology": """
        Graves disease / toxic diffuse goiter | bulging eyes / exophthalmos | methimazole / thiamazole
        + | TSH receptor antibodies | thyroid autoimmunity | thyroid storm
        hypothyroidism / underactive thyroid | cold intolerance | levothyroxine | thyrotropin / TSH
        + | Hashimoto thyroiditis | myxedema coma
        type 2 diabetes / adult-onset diabetes | polyuria / excessive urination | metformin
        + | glycated hemoglobin / HbA1c | insulin resistance | diabetic foot ulcer
        type 1 diabetes / juvenile diabetes | unexplained weight loss | insulin / insulin injections
        + | islet antibodies | beta cell destruction | ketoacidosis
        Addison disease / adrenal insufficiency | skin hyperpigmentation | hydrocortisone | cosyntropin test
        + | autoimmune adrenalitis | adrenal crisis
        Cushing syndrome / hypercortisolism | purple striae | metyrapone | dexamethasone suppression test
        + | pituitary adenoma | vertebral fractures
        pheochromocytoma / chromaffin tumor | paroxysmal sweating | phenoxybenzamine | plasma metanephrines
        + | RET mutation | hypertensive crisis
        hyperparathyroidism / parathyroid overactivity | bone pain | cinacalcet | parathyroid hormone
        + | parathyroid adenoma | nephrocalcinosis
    """,
    "infection": """
        tuberculosis / mycobacterial disease | night sweats | isoniazid | interferon gamma release assay
        + | Mycobacterium tuberculosis | Pott disease
        malaria / plasmodial infection | tertian fever | artesunate | thick blood film
        + | Plasmodium falciparum | blackwater fever
        Lyme disease / Lyme borreliosis | erythema migrans | doxycycline | Borrelia serology
        + | tick bite | facial palsy
        syphilis / lues | painless chancre | benzathine penicillin | VDRL test
        + | Treponema pallidum | tabes dorsalis
        bacterial meningitis / purulent meningitis | neck stiffness | cefotaxime | lumbar puncture
        + | Neisseria meningitidis / meningococcus | hearing loss
        influenza / epidemic flu | sudden myalgia | oseltamivir | rapid antigen test
        + | orthomyxovirus | secondary bacterial pneumonia
        HIV infection / retroviral infection | oral thrush | dolutegravir | CD4 count
        + | unprotected intercourse | Pneumocystis pneumonia
        pseudomembranous colitis / antibiotic colitis | watery diarrhea | fidaxomicin | stool toxin assay
        + | Clostridioides difficile | colonic perforation
    """,
    "rheumatology": """
        rheumatoid arthritis / chronic polyarthritis | morning stiffness | methotrexate
        + | citrullinated peptide antibodies | synovial inflammation | swan neck deformity
        gout / gouty arthritis | swollen big toe / podagra | allopurinol | joint fluid microscopy
        + | hyperuricemia | tophi
        lupus erythematosus / systemic lupus | butterfly rash / malar rash | hydroxychloroquine
        + | antinuclear antibodies | immune complex deposition | glomerulonephritis
        ankylosing spondylitis / Bechterew disease | inflammatory back pain | etanercept | sacroiliac MRI
        + | HLA-B27 | bamboo spine
        osteoarthritis / degenerative joint disease | joint crepitus | joint replacement
        + | weight-bearing radiograph | cartilage wear | bow legs
        giant cell arteritis / temporal arteritis | jaw claudication | tocilizumab | temporal artery biopsy
        + | granulomatous vasculitis | sudden blindness
        systemic sclerosis / scleroderma | Raynaud phenomenon | bosentan | centromere antibodies
        + | fibroblast activation | scleroderma renal crisis
        Sjogren syndrome / sicca syndrome | dry mouth | pilocarpine | Schirmer test
        + | exocrine gland autoimmunity | parotid lymphoma
    """,
    "hematology": """
        iron deficiency anemia / sideropenic anemia | spoon nails / koilonychia | ferrous sulfate | ferritin
        + | chronic blood loss | esophageal web
        pernicious anemia / Biermer anemia | smooth red tongue / glossitis | cobalamin / vitamin B12
        + | intrinsic factor antibodies | atrophic gastritis | spinal cord degeneration
        sickle cell disease / sickle cell anemia | painful bone crises | hydroxyurea / hydroxycarbamide
        + | hemoglobin electrophoresis | beta globin mutation | acute chest syndrome
        hemophilia / factor VIII deficiency | joint bleeding / hemarthrosis | emicizumab
        + | partial thromboplastin time | X-linked inheritance | hemophilic arthropathy
        multiple myeloma / plasma cell myeloma | pathological fractures | bortezomib | protein electrophoresis
        + | clonal plasma cells | cast nephropathy
        Hodgkin lymphoma / Hodgkin disease | painless lymph nodes | doxorubicin | lymph node biopsy
        + | Epstein-Barr virus | superior vena cava syndrome
        chronic myeloid leukemia / chronic granulocytic leukemia | massive splenomegaly | imatinib
        + | BCR-ABL testing | Philadelphia chromosome | blast crisis
        immune thrombocytopenia / autoimmune thrombocytopenia | petechiae | eltrombopag | platelet count
        + | platelet autoantibodies | intracranial hemorrhage
    """,
    "psychiatry": """
        major depression / depressive disorder | anhedonia / loss of interest | sertraline
        + | patient health questionnaire | bereavement | suicide attempt
        bipolar disorder / manic depression | decreased need for sleep | lithium | mood chart
        + | family history of mania | rapid cycling
        schizophrenia / dementia praecox | auditory hallucinations / hearing voices | risperidone
        + | mental state examination | dopamine excess | social withdrawal
        obsessive-compulsive disorder / compulsive neurosis | repeated hand washing | clomipramine
        + | Yale-Brown scale | orbitofrontal overactivity | irritant dermatitis
        panic disorder / panic attacks | sudden fear of dying | paroxetine | panic severity scale
        + | amygdala hyperreactivity | agoraphobia
        anorexia nervosa / self-starvation | fear of weight gain | family-based therapy | body mass index
        + | distorted body image | amenorrhea
        alcohol withdrawal / abstinence syndrome | tremulousness | chlordiazepoxide | CIWA scale
        + | sudden abstinence | delirium tremens
        attention deficit disorder / hyperkinetic disorder | inattention | methylphenidate
        + | Conners rating scale | frontal lobe immaturity | school failure
    """,
}
"""Specialty -> its table."""
