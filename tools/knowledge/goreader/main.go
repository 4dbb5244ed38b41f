// Command goreader reads the resource schemas of a Terraform provider from its Go source and prints them as JSON,
// without building the provider: properties, which of them force a new resource, and under which conditions.
//
//	goreader -root DIR -module IMPORT_PATH          a provider (SDKv2 and framework resources)
//	goreader -root DIR -module IMPORT_PATH -value P  the value of a package variable, as `import/path.name`
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"maps"
	"os"
	"slices"
	"strings"
)

type resource struct {
	Attributes   map[string]*attribute `json:"attributes"`
	Replacements []replacement         `json:"replacements,omitempty"`
	File         string                `json:"file"`
	Unread       bool                  `json:"unread,omitempty"`
}

func main() {
	root := flag.String("root", "", "folder of the source")
	module := flag.String("module", "", "import path of the folder")
	name := flag.String("value", "", "a package variable, as import/path.name")
	flag.Parse()
	found, err := load(*root, *module)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var out any
	if *name != "" {
		at := &scope{tree: found, file: &file{}, names: map[string]value{}}
		place := strings.LastIndex(*name, ".")
		read, ok := at.global((*name)[:place], (*name)[place+1:])
		if !ok {
			fmt.Fprintln(os.Stderr, "no variable", *name)
			os.Exit(1)
		}
		out = read.plain()
	} else {
		out = resources(found)
	}
	encoder := json.NewEncoder(os.Stdout)
	encoder.SetIndent("", " ")
	if err := encoder.Encode(out); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func (v value) plain() any {
	switch v.kind {
	case "map", "struct":
		if len(v.fields) == 0 && len(v.items) > 0 {
			return value{kind: "list", items: v.items}.plain()
		}
		out := map[string]any{}
		for _, key := range v.keys() {
			out[key] = v.fields[key].plain()
		}
		return out
	case "list", "call": // a set is made by a call
		out := []any{}
		for _, each := range append(slices.Clone(v.items), v.args...) {
			out = append(out, each.plain())
		}
		return out
	}
	return v.text
}

// resources returns the resource types that the source registers, by their Terraform names.
func resources(t *tree) map[string]resource {
	out := map[string]resource{}
	for _, pkg := range slices.Sorted(maps.Keys(t.symbols)) {
		for _, list := range []string{"SDKResources", "FrameworkResources"} {
			for _, name := range slices.Sorted(maps.Keys(t.symbols[pkg])) {
				if !strings.HasSuffix(name, "."+list) {
					continue
				}
				registered := t.symbols[pkg][name]
				at := &scope{tree: t, file: registered.file, names: map[string]value{}}
				for _, each := range at.run(&closure{name, registered.fn.Type, registered.fn.Body, at, nil}, nil).items {
					out[each.fields["TypeName"].text] = t.resource(pkg, each.fields["Factory"])
				}
			}
		}
	}
	for _, each := range t.inits {
		t.registrations(each, out)
	}
	delete(out, "")
	return out
}

// registrations reads `registry.Schema{Name: ..., Schema: ResourceX()}.Register()`.
func (t *tree) registrations(of symbol, out map[string]resource) {
	at := &scope{tree: t, file: of.file, names: map[string]value{}}
	ast.Inspect(of.fn.Body, func(node ast.Node) bool {
		literal, ok := node.(*ast.CompositeLit)
		if !ok {
			return true
		}
		kind := typeName(literal.Type)
		given := map[string]ast.Expr{}
		for _, each := range literal.Elts {
			if pair, ok := each.(*ast.KeyValueExpr); ok {
				if key, ok := pair.Key.(*ast.Ident); ok {
					given[key.Name] = pair.Value
				}
			}
		}
		switch {
		case kind == "Schema" && given["Schema"] != nil && given["Type"] != nil:
			if selected, ok := given["Type"].(*ast.SelectorExpr); ok && strings.Contains(selected.Sel.Name, "DataSource") {
				return true
			}
			name := at.eval(given["Name"], nil).text
			if call, ok := given["Schema"].(*ast.CallExpr); ok {
				if called := at.eval(call.Fun, nil); called.kind == "func" {
					var args []value
					for _, arg := range call.Args {
						args = append(args, at.eval(arg, nil))
					}
					out[name] = t.read(called, args)
				}
			}
		case kind == "FrameworkResource" && given["Name"] != nil:
			out[at.eval(given["Name"], nil).text] = t.resource(of.file.pkg, at.eval(given["Func"], nil))
		}
		return true
	})
}

func (t *tree) resource(pkg string, factory value) resource {
	if factory.kind != "func" {
		return resource{}
	}
	return t.read(factory, nil)
}

func (t *tree) read(factory value, args []value) resource {
	t.steps = 0
	fn := factory.fn
	out := resource{File: fn.at.file.name}
	defer func() { t.steps = 0 }()
	result := fn.at.run(fn, args)
	if found := schemaOf(result); len(found.fields) > 0 {
		out.Attributes = fromMap(found)
		out.Unread = t.steps > mostSteps
		if code := result.fields["CustomizeDiff"]; code.expr != nil {
			out.Replacements = code.at.replacements(code.expr, fn.name, map[string]bool{})
		}
		return out
	}
	pkg := fn.at.file.pkg
	method, ok := t.method(pkg, result.text, "Schema")
	if !ok || len(method.fn.Type.Params.List) < 3 {
		return out
	}
	out.File = method.file.name
	at := &scope{tree: t, file: method.file, names: map[string]value{}}
	if names := method.fn.Recv.List[0].Names; len(names) > 0 {
		at.names[names[0].Name] = result
	}
	response := method.fn.Type.Params.List[2].Names[0].Name
	at.names[response] = value{kind: "struct", fields: map[string]value{}}
	at.block(method.fn.Body.List)
	out.Attributes = fromFramework(at.names[response].fields["Schema"])
	if plan, ok := t.method(pkg, result.text, "ModifyPlan"); ok {
		out.Replacements = (&scope{tree: t, file: plan.file, names: map[string]value{}}).planned(plan.fn, result.text)
	}
	return out
}

// planned finds `resp.RequiresReplace = ... path.Root(name)` in a framework resource's ModifyPlan.
func (s *scope) planned(of *ast.FuncDecl, name string) []replacement {
	var out []replacement
	ast.Inspect(of.Body, func(node ast.Node) bool {
		set, ok := node.(*ast.AssignStmt)
		if !ok || len(set.Lhs) != 1 {
			return true
		}
		if target, ok := set.Lhs[0].(*ast.SelectorExpr); !ok || target.Sel.Name != "RequiresReplace" {
			return true
		}
		ast.Inspect(set, func(inner ast.Node) bool {
			call, ok := inner.(*ast.CallExpr)
			if !ok || len(call.Args) != 1 {
				return true
			}
			if target, ok := call.Fun.(*ast.SelectorExpr); ok && target.Sel.Name == "Root" {
				path := s.eval(call.Args[0], nil)
				if path.kind != "text" {
					path.text = ""
				}
				out = append(out, replacement{path.text, []string{""}, name + ".ModifyPlan"})
			}
			return true
		})
		return true
	})
	return out
}
