"""The only place with torch and transformers: the offloaded target, its drafter, and the route atlas.

Nothing is imported here, so the parts that are plain Python (`expert_cache`) load without torch.
"""
