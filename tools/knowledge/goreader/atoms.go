package main

import (
	"go/ast"
	"go/token"
	"slices"
	"strings"
)

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
