"""What a platform is made of: the spec, the machine catalogue, and Pulumi components per cloud.

Never imports torch or ray.
"""
