# SPDX-License-Identifier: Apache-2.0
"""Between notes and what a language model reads and writes: prompts, markup, alignment, generation."""
