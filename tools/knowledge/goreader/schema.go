package main

import (
	"strings"
)

// An attribute is one property of a resource type.
type attribute struct {
	Kind     string                `json:"kind"` // string, int, float, bool, map, list, set, object
	Item     string                `json:"item,omitempty"`
	Fields   map[string]*attribute `json:"fields,omitempty"`
	Replace  bool                  `json:"replace,omitempty"`
	When     []string              `json:"when,omitempty"` // conditions; "" is one that is not understood
	Input    bool                  `json:"input,omitempty"`
	Required bool                  `json:"required,omitempty"`
	One      bool                  `json:"one,omitempty"`
	Default  string                `json:"default,omitempty"`
	Compare  string                `json:"compare,omitempty"` // the function that suppresses differences
	Unread   bool                  `json:"unread,omitempty"`
}

var kinds = map[string]string{
	"TypeString": "string", "TypeInt": "int", "TypeFloat": "float", "TypeBool": "bool", "TypeMap": "map",
	"TypeList": "list", "TypeSet": "set",
}

func last(name string) string {
	return name[strings.LastIndex(name, ".")+1:]
}

// fromMap reads a map of SDKv2 schemas.
func fromMap(found value) map[string]*attribute {
	out := map[string]*attribute{}
	for _, name := range found.keys() {
		out[name] = fromSchema(found.fields[name])
	}
	return out
}

func isTrue(found value) bool { return found.kind == "bool" && found.text == "true" }

// fromSchema reads one SDKv2 `schema.Schema`.
func fromSchema(found value) *attribute {
	if found.kind != "struct" {
		return &attribute{Unread: true}
	}
	if _, ok := found.fields["Type"]; !ok {
		return &attribute{Unread: true}
	}
	own := &attribute{
		Kind:     kinds[last(found.fields["Type"].text)],
		Replace:  isTrue(found.fields["ForceNew"]),
		Required: isTrue(found.fields["Required"]),
		Input:    isTrue(found.fields["Required"]) || isTrue(found.fields["Optional"]),
		One:      found.fields["MaxItems"].text == "1",
		Compare:  function(found.fields["DiffSuppressFunc"]),
	}
	if given := found.fields["Default"]; given.kind == "text" || given.kind == "bool" || given.kind == "number" {
		own.Default = given.text
	}
	if state := found.fields["StateFunc"]; own.Compare == "" && state.kind != "" {
		own.Compare = function(state)
	}
	switch elem := found.fields["Elem"]; {
	case len(elem.fields) == 0:
	case last(elem.text) == "Resource":
		own.Fields = fromMap(schemaOf(elem))
		if own.Replace { // SDKv2 applies ForceNew of a block to the number of its items, not to what is in them
			own.Replace = false
			own.When = []string{"resizes"}
			if own.One {
				own.When = []string{"added", "removed"}
			}
			if everyInput(own.Fields) {
				own.Replace, own.When = true, nil
			}
		}
	default:
		inner := fromSchema(elem)
		own.Item = inner.Kind
		if inner.Kind == "list" || inner.Kind == "set" {
			own.Fields = map[string]*attribute{"[*]": inner}
		} else {
			own.Fields = inner.Fields
		}
		own.Replace = own.Replace || inner.Replace
	}
	return own
}

// everyInput tells whether each property that can be set replaces the resource.
func everyInput(fields map[string]*attribute) bool {
	for _, each := range fields {
		if each.Input && !each.Replace {
			return false
		}
	}
	return len(fields) > 0
}

func function(found value) string {
	switch {
	case found.fn != nil && found.fn.name != "":
		return found.fn.name
	case found.fn != nil:
		return "inline"
	case found.kind == "call" || found.kind == "name":
		return last(found.text)
	}
	return ""
}

// schemaOf returns the map of a `schema.Resource`, given as a map or as a function.
func schemaOf(resource value) value {
	if found := resource.fields["SchemaFunc"]; found.kind == "func" {
		return found.fn.at.run(found.fn, nil)
	}
	return resource.fields["Schema"]
}

// fromFramework reads a framework schema, block or nested object.
func fromFramework(found value) map[string]*attribute {
	out := map[string]*attribute{}
	for _, part := range []string{"Attributes", "Blocks"} {
		each := found.fields[part]
		for _, name := range each.keys() {
			out[name] = fromAttribute(each.fields[name])
		}
	}
	return out
}

func fromAttribute(found value) *attribute {
	kind := last(found.text)
	own := &attribute{Input: isTrue(found.fields["Required"]) || isTrue(found.fields["Optional"]), Required: isTrue(found.fields["Required"])}
	switch {
	case found.kind != "struct" || kind == "":
		own.Unread = found.kind != "call" || !strings.Contains(found.text, "timeouts")
		return own
	case strings.HasPrefix(kind, "List"):
		own.Kind = "list"
	case strings.HasPrefix(kind, "Set"):
		own.Kind = "set"
	case strings.HasPrefix(kind, "Map"):
		own.Kind = "map"
	case strings.HasPrefix(kind, "Single"), strings.HasPrefix(kind, "Object"):
		own.Kind = "object"
	case strings.HasPrefix(kind, "String"):
		own.Kind = "string"
	case strings.HasPrefix(kind, "Int"):
		own.Kind = "int"
	case strings.HasPrefix(kind, "Float"), strings.HasPrefix(kind, "Number"):
		own.Kind = "float"
	case strings.HasPrefix(kind, "Bool"):
		own.Kind = "bool"
	default:
		own.Unread = true
	}
	if strings.HasSuffix(kind, "Block") {
		own.Input = true
	}
	if custom := last(found.fields["CustomType"].text); own.Kind == "string" && custom != "" {
		own.Compare = custom
	}
	if nested := found.fields["NestedObject"]; len(nested.fields) > 0 {
		own.Fields = fromFramework(nested)
	} else if own.Kind == "object" {
		own.Fields = fromFramework(found)
	}
	for _, each := range found.fields["Validators"].items {
		if last(each.text) == "SizeAtMost" && len(each.args) == 1 && each.args[0].text == "1" {
			own.One = true
		}
	}
	for _, each := range found.fields["PlanModifiers"].items {
		name := last(each.text)
		switch {
		case each.kind == "func" && each.fn != nil:
			own.When = append(own.When, "")
		case name == "RequiresReplace":
			own.Replace = true
		case name == "RequiresReplaceIfConfigured":
			own.When = append(own.When, "changes except to absent")
		case name == "RequiresReplaceIfEmptied":
			own.When = append(own.When, "removed")
		case strings.HasPrefix(name, "RequiresReplace"):
			own.When = append(own.When, "")
		case strings.Contains(name, "ForceNew"), strings.Contains(name, "Replace"):
			own.When = append(own.When, "")
		}
	}
	return own
}
