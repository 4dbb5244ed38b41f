package main

import (
	"go/ast"
	"go/token"
	"slices"
)

// A replacement is one call by which a provider's code forces a new resource, with its conditions as far as they
// are understood: "" is one that is not.
type replacement struct {
	Path string   `json:"path"`
	When []string `json:"when"`
	Code string   `json:"code"` // the function that decides
}

// An atom is one comparison in a condition.
type atom struct {
	side, op, text string // old|new|PATH; is|not|smaller|larger|empty|filled|differs
}

// replacements returns the forced replacements in the code of a resource's CustomizeDiff.
func (s *scope) replacements(of ast.Expr, name string, seen map[string]bool) []replacement {
	var out []replacement
	switch each := of.(type) {
	case *ast.CallExpr:
		selected, ok := each.Fun.(*ast.SelectorExpr)
		called := ""
		if ok {
			called = selected.Sel.Name
		}
		switch called {
		case "ForceNewIfChange", "ForceNewIf":
			if len(each.Args) == 2 {
				path := s.eval(each.Args[0], nil).text
				when := []string{""}
				if literal, ok := each.Args[1].(*ast.FuncLit); ok {
					when = s.whenReturned(literal, path, called == "ForceNewIfChange")
				}
				out = append(out, replacement{path, when, name})
			}
			return out
		}
		for _, arg := range each.Args {
			out = append(out, s.replacements(arg, name, seen)...)
		}
		if found := s.eval(each.Fun, nil); found.kind == "func" && found.fn != nil && found.fn.name != "" {
			out = append(out, s.inside(found, seen)...)
		}
	case *ast.FuncLit:
		delete(seen, s.file.pkg+"."+name) // functions without a name go by that of the resource
		out = append(out, s.inside(value{kind: "func", fn: &closure{name, each.Type, each.Body, s, nil}}, seen)...)
	case *ast.CompositeLit:
		for _, item := range each.Elts {
			out = append(out, s.replacements(item, name, seen)...)
		}
	case *ast.Ident, *ast.SelectorExpr:
		if found := s.eval(each, nil); found.kind == "func" && found.fn != nil {
			out = append(out, s.inside(found, seen)...)
		}
	}
	return out
}

// inside finds `d.ForceNew(path)` in a function and in what it calls with the same package's functions.
func (s *scope) inside(found value, seen map[string]bool) []replacement {
	fn := found.fn
	key := fn.at.file.pkg + "." + fn.name
	if fn.body == nil || (fn.name != "" && seen[key]) {
		return nil
	}
	seen[key] = true
	var out []replacement
	var walk func(node ast.Node, conditions []ast.Expr)
	names := map[string]atom{}
	left := false // whether the function may have returned before
	walk = func(node ast.Node, conditions []ast.Expr) {
		ast.Inspect(node, func(each ast.Node) bool {
			switch at := each.(type) {
			case *ast.IfStmt:
				if at.Init != nil {
					walk(at.Init, conditions)
				}
				walk(at.Body, append(slices.Clone(conditions), at.Cond))
				if at.Else != nil {
					walk(at.Else, append(slices.Clone(conditions), nil))
				}
				left = left || (returns(at.Body) && !expected(at.Cond))
				return false
			case *ast.RangeStmt, *ast.ForStmt, *ast.SwitchStmt:
				if at != node {
					walk(at, append(slices.Clone(conditions), nil))
					return false
				}
			case *ast.AssignStmt:
				fn.at.define(at, names)
			case *ast.CallExpr:
				selected, ok := at.Fun.(*ast.SelectorExpr)
				if ok && selected.Sel.Name == "ForceNew" && len(at.Args) == 1 {
					path := fn.at.eval(at.Args[0], nil)
					text := ""
					if path.kind == "text" {
						text = path.text
					}
					when := fn.at.when(conditions, text, names)
					if left {
						when = []string{""}
					}
					out = append(out, replacement{text, when, fn.name})
					return true
				}
				if ok && (selected.Sel.Name == "ForceNewIfChange" || selected.Sel.Name == "ForceNewIf") {
					out = append(out, fn.at.replacements(at, fn.name, seen)...)
					return false
				}
				if inner, ok := at.Fun.(*ast.Ident); ok {
					if called := fn.at.eval(inner, nil); called.kind == "func" && called.fn != nil && called.fn.name != "" {
						out = append(out, fn.at.inside(called, seen)...)
					}
				}
			}
			return true
		})
	}
	walk(fn.body, nil)
	return out
}

func returns(of ast.Node) bool {
	found := false
	ast.Inspect(of, func(each ast.Node) bool {
		_, isReturn := each.(*ast.ReturnStmt)
		found = found || isReturn
		return !found
	})
	return found
}

// expected tells a test that says nothing about the change of a resource that exists: of an error, of a create,
// or of whether the property changed at all.
func expected(of ast.Expr) bool {
	switch each := unwrap(of).(type) {
	case *ast.UnaryExpr:
		call, ok := unwrap(each.X).(*ast.CallExpr)
		return ok && each.Op == token.NOT && show(call) == "haschange"
	case *ast.BinaryExpr:
		if name, ok := each.X.(*ast.Ident); ok && name.Name == "err" {
			return true
		}
		return each.Op == token.EQL && show(each.X) == "id"
	}
	return false
}

// define notes which value of which property a local variable is.
func (s *scope) define(at *ast.AssignStmt, names map[string]atom) {
	if len(at.Rhs) != 1 {
		return
	}
	call, ok := unwrap(at.Rhs[0]).(*ast.CallExpr)
	if !ok {
		return
	}
	selected, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || len(call.Args) != 1 {
		return
	}
	path := s.eval(call.Args[0], nil)
	if path.kind != "text" {
		return
	}
	for place, left := range at.Lhs {
		name, ok := left.(*ast.Ident)
		switch {
		case !ok || name.Name == "_":
		case selected.Sel.Name == "GetChange":
			names[name.Name] = atom{side: []string{"old", "new"}[place], text: path.text}
		case selected.Sel.Name == "Get" && place == 0:
			names[name.Name] = atom{side: "path", text: path.text}
		}
	}
}

// whenReturned reads `func(ctx, old, new, meta) bool` or `func(ctx, d, meta) bool`.
func (s *scope) whenReturned(of *ast.FuncLit, path string, given bool) []string {
	names := map[string]atom{}
	if given {
		var params []string
		for _, field := range of.Type.Params.List {
			for _, name := range field.Names {
				params = append(params, name.Name)
			}
		}
		if len(params) < 3 {
			return []string{""}
		}
		names[params[1]], names[params[2]] = atom{side: "old", text: path}, atom{side: "new", text: path}
	}
	for place, each := range of.Body.List {
		switch at := each.(type) {
		case *ast.AssignStmt:
			s.define(at, names)
			s.rename(at, names)
		case *ast.ReturnStmt:
			if place == len(of.Body.List)-1 && len(at.Results) == 1 {
				return s.conditions(at.Results[0], path, names)
			}
			return []string{""}
		default:
			return []string{""}
		}
	}
	return []string{""}
}

// rename follows `oldLen := len(old.([]any))`.
func (s *scope) rename(at *ast.AssignStmt, names map[string]atom) {
	for place, left := range at.Lhs {
		if name, ok := left.(*ast.Ident); ok && place < len(at.Rhs) {
			if found, ok := names[base(at.Rhs[place])]; ok {
				names[name.Name] = found
			}
		}
	}
}

// base returns the variable that an expression is about: `len(x.([]any))`, `x.(*schema.Set).Len()`.
func base(of ast.Expr) string {
	switch each := unwrap(of).(type) {
	case *ast.Ident:
		return each.Name
	case *ast.CallExpr:
		if name, ok := each.Fun.(*ast.Ident); ok && (name.Name == "len" || name.Name == "string") && len(each.Args) == 1 {
			return base(each.Args[0])
		}
		if selected, ok := each.Fun.(*ast.SelectorExpr); ok && selected.Sel.Name == "Len" {
			return base(selected.X)
		}
	}
	return ""
}

func unwrap(of ast.Expr) ast.Expr {
	for {
		switch each := of.(type) {
		case *ast.ParenExpr:
			of = each.X
		case *ast.TypeAssertExpr:
			of = each.X
		default:
			return of
		}
	}
}

// when reads the conditions of the `if` statements around a call.
func (s *scope) when(all []ast.Expr, path string, names map[string]atom) []string {
	found := [][]atom{{}}
	for _, each := range all {
		if each == nil {
			return []string{""}
		}
		atoms := s.atoms(each, names)
		if atoms == nil {
			return []string{""}
		}
		found = product(found, atoms)
	}
	return texts(found, path)
}

func (s *scope) conditions(of ast.Expr, path string, names map[string]atom) []string {
	found := s.atoms(of, names)
	if found == nil {
		return []string{""}
	}
	return texts(found, path)
}
