package main

import (
	"go/ast"
	"go/token"
	"slices"
	"strings"
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

func product(one, two [][]atom) [][]atom {
	var out [][]atom
	for _, left := range one {
		for _, right := range two {
			out = append(out, append(slices.Clone(left), right...))
		}
	}
	return out
}

// atoms returns a condition as alternatives of comparisons; nil if it is not understood.
func (s *scope) atoms(of ast.Expr, names map[string]atom) [][]atom {
	switch each := unwrap(of).(type) {
	case *ast.BinaryExpr:
		switch each.Op {
		case token.LOR, token.LAND:
			one, two := s.atoms(each.X, names), s.atoms(each.Y, names)
			if one == nil || two == nil {
				return nil
			}
			if each.Op == token.LOR {
				return append(one, two...)
			}
			return product(one, two)
		}
		return s.comparison(each, names)
	case *ast.UnaryExpr:
		if found, ok := names[base(each.X)]; ok && each.Op == token.NOT {
			return [][]atom{{{side(found), "not", "true"}}}
		}
		if path := s.read(each.X); path != "" && each.Op == token.NOT {
			return [][]atom{{{path, "not", "true"}}}
		}
	case *ast.Ident:
		if found, ok := names[each.Name]; ok {
			return [][]atom{{{side(found), "is", "true"}}}
		}
	case *ast.CallExpr:
		if selected, ok := each.Fun.(*ast.SelectorExpr); ok && selected.Sel.Name == "HasChange" && len(each.Args) == 1 {
			return [][]atom{{{s.eval(each.Args[0], nil).text, "changed", ""}}}
		}
		if path := s.read(each); path != "" {
			return [][]atom{{{path, "is", "true"}}}
		}
	}
	return nil
}

func side(of atom) string {
	if of.side == "path" {
		return of.text
	}
	return of.side
}

// read returns the path of `d.Get(path)`, also in a conversion.
func (s *scope) read(of ast.Expr) string {
	call, ok := unwrap(of).(*ast.CallExpr)
	if !ok || len(call.Args) != 1 {
		return ""
	}
	if selected, ok := call.Fun.(*ast.SelectorExpr); ok && selected.Sel.Name == "Get" {
		return s.eval(call.Args[0], nil).text
	}
	if name, ok := call.Fun.(*ast.Ident); ok && name.Name == "string" {
		return s.read(call.Args[0])
	}
	return ""
}

func (s *scope) comparison(of *ast.BinaryExpr, names map[string]atom) [][]atom {
	left, known := names[base(of.X)]
	about := side(left)
	if !known {
		about = s.read(of.X)
		if call, ok := unwrap(of.X).(*ast.CallExpr); ok && about == "" {
			if selected, ok := call.Fun.(*ast.SelectorExpr); ok && selected.Sel.Name == "Id" {
				return [][]atom{{}}
			}
		}
		if about == "" {
			return nil
		}
	}
	if right, ok := names[base(of.Y)]; ok && known && right.text == left.text && right.side != left.side {
		swapped := left.side == "old"
		switch {
		case of.Op == token.NEQ:
			return [][]atom{{{"", "differs", ""}}}
		case of.Op == token.LSS && !swapped, of.Op == token.GTR && swapped:
			return [][]atom{{{"", "smaller", ""}}}
		case of.Op == token.GTR && !swapped, of.Op == token.LSS && swapped:
			return [][]atom{{{"", "larger", ""}}}
		}
		return nil
	}
	if name, ok := unwrap(of.Y).(*ast.Ident); ok && name.Name == "nil" {
		if of.Op == token.NEQ {
			return [][]atom{{}} // the values are there
		}
		return nil
	}
	constant := s.eval(of.Y, nil)
	if constant.kind != "text" && constant.kind != "number" && constant.kind != "bool" {
		return nil
	}
	sizes := constant.kind == "number" && strings.Contains(show(of.X), "len")
	empty := constant.text == "" || (sizes && constant.text == "0")
	switch {
	case empty && of.Op == token.EQL:
		return [][]atom{{{about, "empty", ""}}}
	case empty && (of.Op == token.NEQ || of.Op == token.GTR), sizes && constant.text == "1" && of.Op == token.EQL:
		return [][]atom{{{about, "filled", ""}}}
	case sizes:
		return nil
	case of.Op == token.EQL:
		return [][]atom{{{about, "is", constant.text}}}
	case of.Op == token.NEQ:
		return [][]atom{{{about, "not", constant.text}}}
	}
	return nil
}

func show(of ast.Expr) string {
	switch each := unwrap(of).(type) {
	case *ast.CallExpr:
		if name, ok := each.Fun.(*ast.Ident); ok {
			return name.Name
		}
		if selected, ok := each.Fun.(*ast.SelectorExpr); ok {
			return strings.ToLower(selected.Sel.Name)
		}
	case *ast.Ident:
		return strings.ToLower(each.Name)
	}
	return ""
}

// texts writes alternatives as the conditions of the tables; "" for one that they cannot express.
func texts(all [][]atom, path string) []string {
	var out []string
	for _, atoms := range all {
		out = append(out, text(atoms, path))
	}
	return out
}

func text(atoms []atom, path string) string {
	event, guard := "changes", ""
	var old, new_ atom
	for _, each := range atoms {
		switch {
		case each.op == "differs":
		case each.op == "changed":
			if each.side == "" || (path != each.side && !strings.HasPrefix(path, each.side+".")) {
				return "" // another property has to change too
			}
		case each.op == "smaller", each.op == "larger":
			if event != "changes" {
				return ""
			}
			event = map[string]string{"smaller": "shrinks", "larger": "grows"}[each.op]
		case each.side == "old":
			if old.op != "" {
				return ""
			}
			old = each
		case each.side == "new":
			if new_.op != "" {
				return ""
			}
			new_ = each
		case guard == "" && (each.op == "is" || each.op == "not") && !strings.ContainsAny(each.text, " /"):
			guard = " if " + each.side + map[string]string{"is": " is ", "not": " is not "}[each.op] + each.text
		default:
			return ""
		}
	}
	if strings.ContainsAny(old.text+new_.text, " /") || (event != "changes" && old.op+new_.op != "") {
		return ""
	}
	switch old.op + " " + new_.op {
	case " ":
		return event + guard
	case "filled empty", " empty":
		return "removed" + guard
	case "empty filled", "empty ":
		return "added" + guard
	case " filled":
		return "changes except to absent" + guard
	case "filled filled":
		return "" // neither added nor removed
	case "is is":
		return "changes from " + old.text + " to " + new_.text + guard
	case "is ", "is not":
		return "changes from " + old.text + guard
	case " is", "not is":
		return "changes to " + new_.text + guard
	}
	return ""
}
