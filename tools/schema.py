#!/usr/bin/env python3
"""Writes the table of API types (crates/api/schema/kubernetes-*.txt) from Kubernetes' Go type declarations.

    tools/schema.py KUBERNETES_SOURCE_TREE > crates/api/schema/kubernetes-1.36.txt

Only facts go into the table: names, numbers, types and markers; no prose. Every field number and wire type is checked
against generated.proto; any disagreement or unknown construct ends the run.

The table has a line per type, `NAME [atomic]`, and under it, indented by a space, a line per field in the order of its
declaration, in which Go writes it to JSON: `NAME NUMBER TYPE PRESENCE [MARKER…]`.

NUMBER    the protobuf field number; `2/1`: field 1 of the inlined message in field 2; 0: not in protobuf (TypeMeta).
TYPE      a word (string, int32, Quantity …), a type's name, `[]T`, `{}T` (a map from strings), `items[]T` (a list
          that is a message of its own in protobuf).
PRESENCE  o: the zero value is left out. p: a pointer, left out if absent. a: always written. n: a pointer always
          written, null if absent. Followed by r if the field is required.
MARKER    list=set, list=map:KEYS, map=atomic, struct=atomic|granular, patch=STRATEGY[:MERGEKEY], default=JSON
"""

import glob
import json
import os
import re
import sys

PACKAGES = {
    "core/v1": "api/core/v1",
    "apps/v1": "api/apps/v1",
    "batch/v1": "api/batch/v1",
    "policy/v1": "api/policy/v1",
    "autoscaling/v1": "api/autoscaling/v1",
    "autoscaling/v2": "api/autoscaling/v2",
    "rbac/v1": "api/rbac/v1",
    "coordination/v1": "api/coordination/v1",
    "discovery/v1": "api/discovery/v1",
    "events/v1": "api/events/v1",
    "networking/v1": "api/networking/v1",
    "storage/v1": "api/storage/v1",
    "node/v1": "api/node/v1",
    "certificates/v1": "api/certificates/v1",
    "authentication/v1": "api/authentication/v1",
    "authorization/v1": "api/authorization/v1",
    "admissionregistration/v1": "api/admissionregistration/v1",
    "flowcontrol/v1": "api/flowcontrol/v1",
    "resource/v1": "api/resource/v1",
    "scheduling/v1": "api/scheduling/v1",
    "admission/v1": "api/admission/v1",
    "apidiscovery/v2": "api/apidiscovery/v2",
    "apiregistration/v1": "kube-aggregator/pkg/apis/apiregistration/v1",
    "apiextensions/v1": "apiextensions-apiserver/pkg/apis/apiextensions/v1",
    "metrics/v1beta1": "metrics/pkg/apis/metrics/v1beta1",
    "meta/v1": "apimachinery/pkg/apis/meta/v1",
    # Only for the names of scalars.
    "types": "apimachinery/pkg/types",
}

# Types whose JSON or wire form is not what their declaration says: a word each, and their zero value's presence.
SPECIAL = {
    "meta/v1.Time": "Time",
    "meta/v1.MicroTime": "MicroTime",
    "meta/v1.Duration": "Duration",
    "meta/v1.FieldsV1": "FieldsV1",
    "runtime.RawExtension": "RawExtension",
    "resource.Quantity": "Quantity",
    "intstr.IntOrString": "IntOrString",
    "apiextensions/v1.JSON": "JSON",
    "apiextensions/v1.JSONSchemaPropsOrBool": "SchemaOrBool",
    "apiextensions/v1.JSONSchemaPropsOrArray": "SchemaOrArray",
    "apiextensions/v1.JSONSchemaPropsOrStringArray": "SchemaOrStrings",
}
SCALARS = {"string", "bool", "int32", "int64", "float64"}
# Types that no kind reaches but the API server writes or reads.
EXTRA_ROOTS = ["apiextensions/v1.JSONSchemaProps", "meta/v1.WatchEvent", "meta/v1.Condition", "meta/v1.LabelSelector"]
# Fields of our own, as they stand in the table. Their numbers are far above what upstream will ever use.
OWN_FIELDS = {
    # docs/required-during-execution.md
    "core/v1.NodeAffinity": ["requiredDuringSchedulingRequiredDuringExecution 1001 core/v1.NodeSelector p"],
}


def fail(text):
    sys.exit("schema.py: " + text)


class Package:
    """The declarations of one Go package."""

    def __init__(self, name, path):
        self.name, self.path = name, path
        self.types = {}  # name -> (comment lines, kind, body); kind: struct | alias
        self.imports = {}  # alias -> import path
        self.constants = {}
        for file in sorted(glob.glob(os.path.join(path, "*.go"))):
            base = os.path.basename(file)
            if base.endswith("_test.go") or "generated" in base or base == "fieldsv1_string.go":
                continue
            self.read(open(file, encoding="utf-8").read())

    def read(self, text):
        text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
        for block in re.findall(r"^import \((.*?)^\)", text, re.S | re.M):
            for alias, path in re.findall(r'^\s*(\w+ )?"([^"]+)"', block, re.M):
                self.imports[alias.strip() or path.rsplit("/", 1)[-1]] = path
        for name, value in re.findall(r'^\s*(?:const )?(\w+)\s+(?:\w+\s+)?= ("[^"]*")', text, re.M):
            self.constants[name] = value
        lines = text.split("\n")
        comments, body, current = [], None, None
        for line in lines:
            stripped = line.strip()
            if body is not None:
                if line == "}":
                    self.types[current] = (self.types[current][0], "struct", body)
                    body = None
                else:
                    body.append(line)
                continue
            if stripped.startswith("//"):
                comments.append(stripped[2:].strip())
                continue
            match = re.match(r"^type (\w+) (.*)$", line)
            if match:
                current, rest = match.groups()
                if rest == "struct {":
                    self.types[current] = (comments, "struct", [])
                    body = []
                elif rest == "struct{}" or rest == "struct {}":
                    self.types[current] = (comments, "struct", [])
                elif not rest.startswith(("interface", "func")):
                    self.types[current] = (comments, "alias", rest.split("//")[0].strip())
            if stripped:
                comments = []


class Proto:
    """Field numbers and types of the messages in one generated.proto."""

    def __init__(self, path):
        self.messages = {}
        current = None
        for line in open(path, encoding="utf-8"):
            match = re.match(r"^message (\w+) \{", line)
            if match:
                current = self.messages.setdefault(match.group(1), {})
            match = re.match(r"^  (optional|repeated|required)? ?(map<[^>]+>|[\w.]+) (\w+) = (\d+);", line)
            if match and current is not None:
                label, kind, name, number = match.groups()
                current[int(number)] = (name, label if not kind.startswith("map<") else "map", kind)


class Field:
    pass


def markers(comments):
    out = {}
    for line in comments:
        match = re.match(r"^\+([\w:]+)(?:=(.*))?$", line)
        if match:
            out.setdefault(match.group(1), []).append((match.group(2) or "").strip())
    return out


class Table:
    def __init__(self, tree):
        staging = os.path.join(tree, "staging/src/k8s.io")
        self.packages = {n: Package(n, os.path.join(staging, p)) for n, p in PACKAGES.items()}
        self.by_import = {"k8s.io/" + p: n for n, p in PACKAGES.items()}
        self.protos = {}
        for name, path in PACKAGES.items():
            file = os.path.join(staging, path, "generated.proto")
            if os.path.exists(file):
                self.protos[name] = Proto(file)
        self.done = {}

    def package_of(self, package, alias):
        path = package.imports.get(alias) or fail(f"{package.name}: no import {alias}")
        return self.by_import.get(path, path.rsplit("/", 1)[-1])

    def resolve(self, package, go):
        """A Go type as the table writes it. Returns (text, kind); kind: pointer | struct | collection | scalar."""
        if go.startswith("*"):
            text, _ = self.resolve(package, go[1:])
            return text, "pointer"
        if go == "[]byte":
            return "bytes", "collection"
        if go.startswith("[]"):
            return "[]" + self.element(package, go[2:]), "collection"
        match = re.match(r"^map\[([\w.]+)\](.*)$", go)
        if match:
            if self.resolve(package, match.group(1))[0] != "string":
                fail(f"{package.name}: key of {go}")
            return "{}" + self.element(package, match.group(2)), "collection"
        if go == "interface{}":
            return "JSON", "pointer"
        if go in SCALARS:
            return go, "scalar"
        if "." in go:
            alias, name = go.split(".")
            owner = self.package_of(package, alias)
        else:
            owner, name = package.name, go
        full = f"{owner}.{name}"
        if full in SPECIAL:
            return SPECIAL[full], "struct"
        declared = self.packages.get(owner) or fail(f"{package.name}: {go} is of unknown package {owner}")
        if name not in declared.types:
            fail(f"{package.name}: no declaration of {full}")
        _, kind, body = declared.types[name]
        if kind == "struct":
            self.visit(full)
            return full, "struct"
        text, kind = self.resolve(declared, body)
        message = self.protos[owner].messages.get(name) if owner in self.protos else None
        if kind == "collection" and message and list(message.values())[0][0] == "items":
            return "items" + text, kind
        return text, kind

    def element(self, package, go):
        text, kind = self.resolve(package, go)
        if kind == "pointer" and text != "JSON":
            fail(f"{package.name}: elements of type {go} may be null")
        return text

    def visit(self, full):
        if full in self.done:
            return
        owner, name = full.rsplit(".", 1)
        comments, kind, _ = self.packages[owner].types[name]
        if kind != "struct":
            fail(f"{full} is not a struct")
        self.done[full] = None
        marks = markers(comments)
        atomic = "atomic" in marks.get("structType", []) + marks.get("mapType", [])
        fields = self.fields(full, [])
        names = [f.name for f in fields]
        if len(set(names)) != len(names):
            fail(f"{full}: two fields of one name")
        self.done[full] = (atomic, fields)

    def fields(self, full, via):
        owner, name = full.rsplit(".", 1)
        package = self.packages[owner]
        out, comments = [], []
        for line in package.types[name][2]:
            stripped = line.strip()
            if stripped.startswith("//"):
                comments.append(stripped[2:].strip())
                continue
            if not stripped:
                comments = []
                continue
            match = re.match(r"^(?:(\w+) +)?([\w.*\[\]{}]+)\s+`([^`]*)`(?: *//.*)?$", stripped)
            if not match:
                fail(f"{full}: cannot read {stripped!r}")
            tags = dict(re.findall(r'(\w+):"((?:[^"\\]|\\.)*)"', match.group(3)))
            out += self.field(full, package, via, markers(comments), match.group(2), tags)
            comments = []
        return out

    def field(self, full, package, via, marks, go, tags):
        json_name, *options = tags["json"].split(",")
        if json_name == "-":
            return []
        number = int(tags["protobuf"].split(",")[1]) if "protobuf" in tags else 0
        if json_name == "" and "inline" in options:
            owner, name = package.name, go
            if "." in go:
                alias, name = go.split(".")
                owner = self.package_of(package, alias)
            inner = f"{owner}.{name}"
            if number == 0 and name != "TypeMeta":
                fail(f"{full}: inlined {go} has no number")
            if number:
                self.check(full, number, None, inner)
                return self.fields(inner, via + [number])
            inlined = self.fields(inner, via)
            for field in inlined:
                field.number = 0
            return inlined
        field = Field()
        field.name = json_name
        field.number = number
        field.via = via
        field.type, kind = self.resolve(package, go)
        omitted = "omitempty" in options or "omitzero" in options
        if kind == "pointer":
            field.presence = "p" if omitted else "n"
        elif kind == "struct":
            # encoding/json never takes a struct for empty.
            field.presence = "o" if "omitzero" in options else "a"
        else:
            field.presence = "o" if omitted else "a"
        optional = "omitempty" in options if "required" not in marks else False
        field.required = not optional and "optional" not in marks
        field.marks = self.marks(full, json_name, field.type, marks, tags, package)
        if number:
            self.check(full, number, field, field.type)
        elif not full.endswith(".TypeMeta") and self.message(full) is not None:
            fail(f"{full}.{json_name} has no number")
        return [field]

    def marks(self, full, name, kind, marks, tags, package):
        out = []
        patch, key = tags.get("patchStrategy", ""), tags.get("patchMergeKey", "")
        if kind.startswith(("[]", "items[]")):
            list_type = marks.get("listType", [""])[0]
            keys = marks.get("listMapKey", [])
            # Without a marker the older tags decide.
            if not list_type and "merge" in patch.split(","):
                list_type, keys = ("map", [key]) if key else ("set", [])
            if list_type == "map":
                out.append("list=map:" + ",".join(sorted(keys)))
            elif list_type == "set":
                out.append("list=set")
            elif list_type not in ("", "atomic"):
                fail(f"{full}.{name}: list type {list_type}")
        for word in ("map", "struct"):
            value = marks.get(word + "Type", [""])[0]
            if value and not (word == "map" and value == "granular"):
                out.append(f"{word}={value}")
        if patch:
            out.append("patch=" + patch + (":" + key if key else ""))
        elif key:
            fail(f"{full}.{name}: merge key without strategy")
        if "default" in marks:
            text = marks["default"][0]
            match = re.match(r"^ref\((?:[\w/.-]+\.)?(\w+)\)$", text)
            if match:
                text = package.constants[match.group(1)]
            out.append("default=" + json.dumps(json.loads(text), separators=(",", ":")))
        return out

    def message(self, full):
        """The definition in generated.proto, if the type is ever sent as protobuf (tables are not)."""
        owner, name = full.rsplit(".", 1)
        return self.protos[owner].messages.get(name)

    def check(self, full, number, field, text):
        """Compares a field with the message's definition."""
        message = self.message(full)
        if message is None or number not in message:
            fail(f"{full}: no number {number} in generated.proto")
        proto_name, label, kind = message[number]
        if field is None:
            return
        where = f"{full}.{field.name}: {text} but {label} {kind} {proto_name}"
        if text.startswith("{}"):
            match = re.match(r"^map<string, ([\w.]+)>$", kind)
            if not match:
                fail(where)
            self.check_kind(where, text[2:], match.group(1))
        elif text.startswith("[]"):
            if label != "repeated":
                fail(where)
            self.check_kind(where, text[2:], kind)
        else:
            if label in ("repeated", "map"):
                fail(where)
            self.check_kind(where, text, kind)

    def check_kind(self, where, text, kind):
        names = {word: full.rsplit(".", 1)[-1] for full, word in SPECIAL.items()}
        names |= {"float64": "double", "items[]string": kind.rsplit(".", 1)[-1]}
        want = names.get(text, text.rsplit(".", 1)[-1])
        if want != kind.rsplit(".", 1)[-1]:
            fail(where)

    def write(self, out):
        for full in sorted(self.done):
            atomic, fields = self.done[full]
            out.write(full + (" atomic" if atomic else "") + "\n")
            for f in fields:
                number = "/".join(map(str, f.via + [f.number]))
                presence = f.presence + ("r" if f.required else "")
                out.write(" " + " ".join([f.name, number, f.type, presence] + f.marks) + "\n")
            for line in OWN_FIELDS.get(full, []):
                out.write(" " + line + "\n")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    table = Table(sys.argv[1])
    for name, package in table.packages.items():
        for type_name, (_, kind, body) in package.types.items():
            full = f"{name}.{type_name}"
            if kind == "struct" and any(
                re.match(r"^\s*(\w+\.)?TypeMeta\s+`json:\"(,inline|,omitempty)?", line) for line in body
            ):
                table.visit(full)
    for full in EXTRA_ROOTS:
        table.visit(full)
    table.write(sys.stdout)


main()
