package main

import (
	"go/ast"
	"go/token"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// A value is what an expression of a schema evaluates to, without running the program.
type value struct {
	kind   string // text, number, bool, struct, map, list, func, call, name, unknown
	text   string // a constant, the function of a call, the type of a struct
	fields map[string]value
	items  []value
	args   []value
	fn     *closure
	expr   ast.Expr // of a field that is read as code
	at     *scope
}

// A closure is a function with the names that are visible where it is written.
type closure struct {
	name string
	typ  *ast.FuncType
	body *ast.BlockStmt
	at   *scope
	recv *ast.FieldList
}

// A scope is the names that are visible at an expression.
type scope struct {
	tree   *tree
	file   *file
	names  map[string]value
	parent *scope
	depth  int
}

const (
	deepest   = 40
	mostSteps = 3_000_000 // of one resource
)

var nothing = value{kind: "unknown"}

func (s *scope) inner() *scope {
	return &scope{tree: s.tree, file: s.file, names: map[string]value{}, parent: s, depth: s.depth}
}

func (s *scope) lookup(name string) (value, bool) {
	for each := s; each != nil; each = each.parent {
		if found, ok := each.names[name]; ok {
			return found, true
		}
	}
	return nothing, false
}

func (s *scope) assign(name string, found value) {
	for each := s; each != nil; each = each.parent {
		if _, ok := each.names[name]; ok {
			each.names[name] = found
			return
		}
	}
	s.names[name] = found
}

func (s *scope) global(pkg, name string) (value, bool) {
	found, ok := s.tree.find(pkg, name)
	if !ok {
		return nothing, false
	}
	at := &scope{tree: s.tree, file: found.file, names: map[string]value{}, depth: s.depth + 1}
	if found.fn != nil {
		return value{kind: "func", text: name, fn: &closure{name, found.fn.Type, found.fn.Body, at, found.fn.Recv}}, true
	}
	if at.depth > deepest {
		return nothing, true
	}
	return at.eval(found.expr, nil), true
}

// eval returns the value of an expression. A `typ` is what an elided composite literal is an item of.
func (s *scope) eval(of ast.Expr, typ ast.Expr) value {
	if s.tree.steps++; s.tree.steps > mostSteps {
		return nothing
	}
	switch each := of.(type) {
	case *ast.BasicLit:
		if each.Kind == token.STRING {
			text, err := strconv.Unquote(each.Value)
			if err != nil {
				return nothing
			}
			return value{kind: "text", text: text}
		}
		return value{kind: "number", text: each.Value}
	case *ast.Ident:
		return s.ident(each.Name)
	case *ast.ParenExpr:
		return s.eval(each.X, typ)
	case *ast.StarExpr:
		return s.eval(each.X, typ)
	case *ast.UnaryExpr:
		if each.Op == token.AND {
			return s.eval(each.X, typ)
		}
	case *ast.BinaryExpr:
		one, two := s.eval(each.X, nil), s.eval(each.Y, nil)
		if each.Op == token.ADD && one.kind == "text" && two.kind == "text" {
			return value{kind: "text", text: one.text + two.text}
		}
		return arithmetic(each.Op, one, two)
	case *ast.SelectorExpr:
		return s.selector(each)
	case *ast.CompositeLit:
		return s.composite(each, typ)
	case *ast.FuncLit:
		return value{kind: "func", fn: &closure{"", each.Type, each.Body, s, nil}}
	case *ast.IndexExpr: // an instance of a generic function, or an item of a map
		found := s.eval(each.X, nil)
		if found.kind == "map" || found.kind == "struct" {
			if key := s.eval(each.Index, nil); key.kind == "text" {
				return found.fields[key.text]
			}
		}
		return found
	case *ast.IndexListExpr:
		return s.eval(each.X, nil)
	case *ast.TypeAssertExpr:
		return s.eval(each.X, nil)
	case *ast.CallExpr:
		return s.call(each)
	}
	return nothing
}

func (s *scope) ident(name string) value {
	switch name {
	case "true", "false":
		return value{kind: "bool", text: name}
	case "nil":
		return nothing
	}
	if found, ok := s.lookup(name); ok {
		return found
	}
	if found, ok := s.global(s.file.pkg, name); ok {
		return found
	}
	return value{kind: "name", text: name}
}

func (s *scope) selector(of *ast.SelectorExpr) value {
	if owner, ok := of.X.(*ast.Ident); ok {
		if _, local := s.lookup(owner.Name); !local {
			if pkg, ok := s.file.imports[owner.Name]; ok {
				if found, ok := s.global(pkg, of.Sel.Name); ok {
					return found
				}
				if strings.HasSuffix(pkg, "/names") && strings.HasPrefix(of.Sel.Name, "Attr") {
					return value{kind: "text", text: snake(strings.TrimPrefix(of.Sel.Name, "Attr"))}
				}
				return value{kind: "name", text: owner.Name + "." + of.Sel.Name}
			}
		}
	}
	found := s.eval(of.X, nil)
	if field, ok := found.fields[of.Sel.Name]; ok {
		return field
	}
	if found.kind == "struct" && found.text != "" { // a method of a value of this package
		if method, ok := s.global(s.file.pkg, found.text+"."+of.Sel.Name); ok {
			return method
		}
	}
	return value{kind: "name", text: found.text + "." + of.Sel.Name}
}

// snake returns `kms_key_id` for KMSKeyID, as the constants of attribute names are called.
func snake(name string) string {
	if rest := strings.TrimSuffix(name, "ID"); rest != name && rest != "" {
		name = rest + "Id" // VPCID is two words
	}
	name = strings.NewReplacer("IDs", "Ids", "ARNs", "Arns", "CIDRs", "Cidrs", "VPCs", "Vpcs").Replace(name)
	var out strings.Builder
	runes := []rune(name)
	for place, each := range runes {
		if unicode.IsUpper(each) && place > 0 {
			before, after := runes[place-1], place+1 < len(runes) && unicode.IsLower(runes[place+1])
			if unicode.IsLower(before) || unicode.IsDigit(before) || after {
				out.WriteByte('_')
			}
		}
		out.WriteRune(unicode.ToLower(each))
	}
	return out.String()
}

func typeName(of ast.Expr) string {
	switch each := of.(type) {
	case *ast.StarExpr:
		return typeName(each.X)
	case *ast.Ident:
		return each.Name
	case *ast.SelectorExpr:
		return each.Sel.Name
	case *ast.IndexExpr:
		return typeName(each.X)
	}
	return ""
}

func itemType(of ast.Expr) ast.Expr {
	switch each := of.(type) {
	case *ast.MapType:
		return each.Value
	case *ast.ArrayType:
		return each.Elt
	}
	return nil
}

func (s *scope) composite(of *ast.CompositeLit, typ ast.Expr) value {
	if of.Type != nil {
		typ = of.Type
	}
	_, isMap := typ.(*ast.MapType)
	if _, isList := typ.(*ast.ArrayType); isList {
		found := value{kind: "list"}
		for _, each := range of.Elts {
			found.items = append(found.items, s.eval(each, itemType(typ)))
		}
		return found
	}
	found := value{kind: "struct", text: typeName(typ), fields: map[string]value{}}
	if isMap {
		found.kind = "map"
	}
	for _, each := range of.Elts {
		pair, ok := each.(*ast.KeyValueExpr)
		if !ok { // a list of a named type
			found.items = append(found.items, s.eval(each, nil))
			continue
		}
		name, isIdent := pair.Key.(*ast.Ident)
		if isIdent && !isMap && name.Name == "CustomizeDiff" {
			found.set(name.Name, value{kind: "code", expr: pair.Value, at: s})
			continue
		}
		if isIdent && !isMap {
			found.set(name.Name, s.eval(pair.Value, nil))
			continue
		}
		if key := s.eval(pair.Key, nil); key.text != "" {
			found.set(key.text, s.eval(pair.Value, itemType(typ)))
		}
	}
	return found
}

func (v *value) set(name string, found value) {
	if v.fields == nil {
		v.fields = map[string]value{}
	}
	v.fields[name] = found
}

func (v value) keys() []string {
	return slices.Sorted(maps.Keys(v.fields))
}

func (s *scope) call(of *ast.CallExpr) value {
	var args []value
	for _, each := range of.Args {
		args = append(args, s.eval(each, nil))
	}
	if name, ok := of.Fun.(*ast.Ident); ok {
		switch name.Name {
		case "append":
			found := value{kind: "list"}
			for place, each := range args {
				if place == 0 || (place == len(args)-1 && of.Ellipsis != token.NoPos) {
					found.items = append(found.items, each.items...)
				} else {
					found.items = append(found.items, each)
				}
			}
			return found
		case "make":
			return value{kind: "map", fields: map[string]value{}}
		}
	}
	switch of.Fun.(type) {
	case *ast.ArrayType, *ast.MapType: // a conversion
		if len(args) == 1 {
			return args[0]
		}
	}
	called := s.eval(of.Fun, nil)
	if strings.HasPrefix(called.text, "sync.OnceValue") && len(args) == 1 {
		return args[0]
	}
	if selected, ok := of.Fun.(*ast.SelectorExpr); ok && selected.Sel.Name == "Merge" || called.text == "maps.Clone" {
		if len(args) == 1 {
			return args[0]
		}
	}
	if called.kind == "func" && called.fn.body != nil && s.depth < deepest {
		return s.run(called.fn, args)
	}
	if called.kind == "name" && len(args) == 1 && (args[0].kind == "text" || args[0].kind == "name") && !strings.Contains(called.text, ".") {
		return args[0] // string(x)
	}
	return value{kind: "call", text: called.text, args: args}
}

func arithmetic(op token.Token, one, two value) value {
	if one.kind == "text" && two.kind == "text" && (op == token.EQL || op == token.NEQ) {
		return value{kind: "bool", text: strconv.FormatBool((one.text == two.text) == (op == token.EQL))}
	}
	left, err := strconv.Atoi(one.text)
	right, other := strconv.Atoi(two.text)
	if one.kind != "number" || two.kind != "number" || err != nil || other != nil {
		return nothing
	}
	switch op {
	case token.ADD:
		return value{kind: "number", text: strconv.Itoa(left + right)}
	case token.SUB:
		return value{kind: "number", text: strconv.Itoa(left - right)}
	case token.LSS, token.GTR, token.LEQ, token.GEQ, token.EQL, token.NEQ:
		holds := map[token.Token]bool{
			token.LSS: left < right, token.GTR: left > right, token.LEQ: left <= right, token.GEQ: left >= right,
			token.EQL: left == right, token.NEQ: left != right,
		}[op]
		return value{kind: "bool", text: strconv.FormatBool(holds)}
	}
	return nothing
}
