# SPDX-License-Identifier: Apache-2.0
"""Parameter-efficient methods: one file each, registered in `registry.PEFT_METHODS`.

`base.py` holds the contract; `layer_adapters.py` what methods that change linear layers have in common, and
`virtual_tokens.py` what methods that add virtual tokens have in common.
"""
