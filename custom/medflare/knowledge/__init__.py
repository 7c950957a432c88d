# SPDX-License-Identifier: Apache-2.0
"""Knowledge graphs of sites, and how similar they are (DDCS).

The way in is `site_graph`: `site_graph.site_graph(config, texts)` makes the graph that the block `knowledge`
of site.yaml describes, and `site_graph.site_sketch` its sketch. The steps are

1. texts (`cohort_texts`) -> triples (`rule_extraction`, `model_extraction`, `imported_graphs`),
2. names that all sites share (`vocabulary`, `nearest_concept`, `naming`),
3. the graph (`triples`, `completion`),
4. comparison by sketches (`sketch_key`, `minhash`, `sketches`, `divergence`), or exactly
   (`private_intersection`, `site_pairs`).
"""
