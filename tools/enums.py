#!/usr/bin/env python3
"""Writes the table of enumerated fields (crates/apiserver/src/openapi/enums.txt) from Kubernetes' generated OpenAPI code.

    tools/enums.py KUBERNETES_SOURCE_TREE crates/api/schema/kubernetes-1.36.txt > crates/apiserver/src/openapi/enums.txt

A line per field, sorted: `TYPE FIELD VALUE|VALUE…`, TYPE as in the table of types. Types that are not in that table are
left out. For lists the values are those of the elements.
"""

import os
import re
import sys

def type_name(function):
    """schema_k8sio_api_core_v1_Pod → core/v1.Pod"""
    match = re.match(r"schema_(?:k8sio_api|pkg_apis)_([a-z]+)_(v\w+?)_(\w+)$", function)
    return match and "{}/{}.{}".format(*match.groups())


def main():
    tree, table = sys.argv[1:3]
    known = {line.split()[0] for line in open(table, encoding="utf-8") if not line.startswith(" ")}
    rows, owner, field = [], None, None
    path = os.path.join(tree, "pkg/generated/openapi/zz_generated.openapi.go")
    for line in open(path, encoding="utf-8"):
        if match := re.match(r"func (schema_\w+)\(", line):
            owner = type_name(match.group(1))
        elif match := re.match(r'\t{5}"([^"]+)": \{', line):
            field = match.group(1)
        elif match := re.match(r"\t+Enum: +\[\]interface\{\}\{(.*)\},", line):
            values = re.findall(r'"([^"]*)"', match.group(1))
            if owner in known:
                rows.append(f"{owner} {field} {'|'.join(values)}")
    print("\n".join(sorted(rows)))


if __name__ == "__main__":
    main()
