package main

import (
	"go/ast"
	"go/token"
)

// run returns what a function returns. Both branches of an `if` are run; the last value that is known wins.
func (s *scope) run(fn *closure, args []value) value {
	key := fn.at.file.pkg + "." + fn.name
	if constant := fn.name != "" && len(args) == 0 && fn.recv == nil; constant {
		if found, ok := s.tree.results[key]; ok {
			return found
		}
		found := s.once(fn, args)
		if s.tree.steps <= mostSteps {
			s.tree.results[key] = found
		}
		return found
	}
	return s.once(fn, args)
}

func (s *scope) once(fn *closure, args []value) value {
	at := fn.at.inner()
	at.depth = s.depth + 1
	place := 0
	for _, field := range fn.typ.Params.List {
		_, variadic := field.Type.(*ast.Ellipsis)
		for _, name := range field.Names {
			switch {
			case variadic && place < len(args):
				rest := value{kind: "list", items: args[place:]}
				if len(args) == place+1 && args[place].kind == "list" {
					rest = args[place]
				}
				at.names[name.Name] = rest
			case place < len(args):
				at.names[name.Name] = args[place]
			default:
				at.names[name.Name] = nothing
			}
			place++
		}
		if len(field.Names) == 0 {
			place++
		}
	}
	if fn.typ.Results != nil {
		for _, field := range fn.typ.Results.List {
			for _, name := range field.Names {
				at.names[name.Name] = nothing
			}
		}
	}
	result, _ := at.block(fn.body.List)
	if result.kind == "unknown" && fn.typ.Results != nil {
		for _, field := range fn.typ.Results.List {
			for _, name := range field.Names {
				if found := at.names[name.Name]; found.kind != "unknown" {
					return found
				}
			}
		}
	}
	return result
}

// block returns what a list of statements returns, and whether it certainly returns.
func (s *scope) block(statements []ast.Stmt) (value, bool) {
	result := nothing
	for _, each := range statements {
		found, done := s.statement(each)
		if found.kind != "unknown" {
			result = found
		}
		if done {
			return result, true
		}
	}
	return result, false
}

func (s *scope) statement(of ast.Stmt) (value, bool) {
	switch each := of.(type) {
	case *ast.ReturnStmt:
		if len(each.Results) > 0 {
			return s.eval(each.Results[0], nil), true
		}
		return nothing, true
	case *ast.AssignStmt:
		for place, left := range each.Lhs {
			if place < len(each.Rhs) {
				s.store(left, s.eval(each.Rhs[place], nil), each.Tok == token.DEFINE)
			} else if name, ok := left.(*ast.Ident); ok {
				s.names[name.Name] = nothing
			}
		}
	case *ast.DeclStmt:
		if decl, ok := each.Decl.(*ast.GenDecl); ok {
			for _, spec := range decl.Specs {
				if given, ok := spec.(*ast.ValueSpec); ok {
					for place, name := range given.Names {
						s.names[name.Name] = nothing
						if place < len(given.Values) {
							s.names[name.Name] = s.eval(given.Values[place], nil)
						}
					}
				}
			}
		}
	case *ast.IfStmt:
		inner := s.inner()
		if each.Init != nil {
			inner.statement(each.Init)
		}
		holds := inner.eval(each.Cond, nil)
		if holds.kind == "bool" && holds.text == "true" {
			return inner.block(each.Body.List)
		}
		result := nothing
		if holds.kind != "bool" {
			result, _ = inner.block(each.Body.List)
		}
		if each.Else != nil {
			found, done := inner.statement(each.Else)
			if found.kind != "unknown" {
				result = found
			}
			return result, done && holds.kind == "bool"
		}
		return result, false
	case *ast.BlockStmt:
		return s.inner().block(each.List)
	case *ast.RangeStmt:
		s.loop(each)
	case *ast.ExprStmt:
		if call, ok := each.X.(*ast.CallExpr); ok {
			s.effect(call)
		}
	}
	return nothing, false
}

func (s *scope) store(left ast.Expr, found value, defines bool) {
	switch target := left.(type) {
	case *ast.Ident:
		if defines {
			s.names[target.Name] = found
		} else {
			s.assign(target.Name, found)
		}
	case *ast.IndexExpr:
		key := s.eval(target.Index, nil)
		owner := s.eval(target.X, nil)
		if key.text != "" && (owner.kind == "map" || owner.kind == "struct") {
			owner.set(key.text, found)
			s.store(target.X, owner, false)
		}
	case *ast.SelectorExpr:
		owner := s.eval(target.X, nil)
		if owner.kind != "struct" && owner.kind != "map" {
			owner = value{kind: "struct", text: owner.text, fields: map[string]value{}}
		}
		owner.set(target.Sel.Name, found)
		s.store(target.X, owner, false)
	}
}

func (s *scope) loop(of *ast.RangeStmt) {
	over := s.eval(of.X, nil)
	step := func(key, item value) {
		inner := s.inner()
		if name, ok := of.Key.(*ast.Ident); ok {
			inner.names[name.Name] = key
		}
		if name, ok := of.Value.(*ast.Ident); ok {
			inner.names[name.Name] = item
		}
		inner.block(of.Body.List)
	}
	for _, key := range over.keys() {
		step(value{kind: "text", text: key}, over.fields[key])
	}
	for _, item := range over.items {
		step(nothing, item)
	}
}

func (s *scope) effect(call *ast.CallExpr) {
	if name := s.eval(call.Fun, nil).text; name == "maps.Copy" && len(call.Args) == 2 {
		to, from := s.eval(call.Args[0], nil), s.eval(call.Args[1], nil)
		for _, key := range from.keys() {
			to.set(key, from.fields[key])
		}
		s.store(call.Args[0], to, false)
	}
	if name, ok := call.Fun.(*ast.Ident); ok && name.Name == "delete" && len(call.Args) == 2 {
		if key := s.eval(call.Args[1], nil); key.text != "" {
			delete(s.eval(call.Args[0], nil).fields, key.text)
		}
	}
	if called := s.eval(call.Fun, nil); called.kind == "func" && called.fn.body != nil && s.depth < deepest {
		for _, each := range call.Args { // a function that fills in what it is given
			if inner, ok := each.(*ast.Ident); ok && s.eval(inner, nil).kind == "map" {
				var args []value
				for _, arg := range call.Args {
					args = append(args, s.eval(arg, nil))
				}
				s.run(called.fn, args)
				break
			}
		}
	}
}
