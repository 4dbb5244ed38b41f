package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// A symbol is one declaration with the file whose imports it uses.
type symbol struct {
	fn   *ast.FuncDecl
	expr ast.Expr // the value of a constant or variable
	file *file
}

// A file is what an expression needs of its file: the package and the imports.
type file struct {
	pkg     string // import path
	name    string // path below the root, with slashes
	imports map[string]string
}

// A tree is every declaration of a source tree, by import path and name; methods are `Type.Name`.
type tree struct {
	symbols map[string]map[string]symbol
	inits   []symbol // functions named init
	steps   int      // evaluated for the resource that is being read
	results map[string]value
	embeds  map[string][]string // the embedded types of a struct, by import path and name
}

var single = regexp.MustCompile(`(?m)^\)\n\s*([A-Za-z_]\w*)\s`)
var bare = regexp.MustCompile(`(?m)^package .*\n\s*([A-Za-z_]\w*)\s*(=|[A-Za-z])`)

// load parses every .go file below root, and every .goindex file (one symbol a file, as in an index by symbol).
func load(root, module string) (*tree, error) {
	found := &tree{symbols: map[string]map[string]symbol{}, results: map[string]value{}, embeds: map[string][]string{}}
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		isIndex := strings.HasSuffix(name, ".goindex")
		if !isIndex && (!strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go")) {
			return nil
		}
		below, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		below = filepath.ToSlash(below)
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		found.add(below, path.Join(module, path.Dir(below)), string(text), isIndex)
		return nil
	})
	return found, err
}

func (t *tree) add(name, pkg, text string, isIndex bool) {
	if isIndex {
		text = "package p\n" + text[strings.Index(text, "\n")+1:]
	}
	parsed, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
	if err != nil && isIndex {
		// A constant of a group is cut out without its keyword.
		for _, start := range []*regexp.Regexp{single, bare} {
			if place := start.FindStringSubmatchIndex(text); place != nil {
				text = text[:place[2]] + "var " + text[place[2]:]
				parsed, err = parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
				break
			}
		}
	}
	if parsed == nil {
		return
	}
	own := &file{pkg: pkg, name: name, imports: map[string]string{}}
	for _, each := range parsed.Imports {
		where := strings.Trim(each.Path.Value, `"`)
		alias := path.Base(where)
		if regexp.MustCompile(`^v\d+$`).MatchString(alias) {
			alias = path.Base(path.Dir(where))
		}
		if each.Name != nil {
			alias = each.Name.Name
		}
		own.imports[alias] = where
	}
	if t.symbols[pkg] == nil {
		t.symbols[pkg] = map[string]symbol{}
	}
	for _, each := range parsed.Decls {
		switch decl := each.(type) {
		case *ast.FuncDecl:
			name := decl.Name.Name
			if decl.Recv != nil && len(decl.Recv.List) > 0 {
				name = receiver(decl.Recv.List[0].Type) + "." + name
			} else if name == "init" {
				t.inits = append(t.inits, symbol{fn: decl, file: own})
				continue
			}
			t.symbols[pkg][name] = symbol{fn: decl, file: own}
		case *ast.GenDecl:
			for _, spec := range decl.Specs {
				if typ, ok := spec.(*ast.TypeSpec); ok {
					t.embedded(pkg+"."+typ.Name.Name, typ.Type)
				}
				if value, ok := spec.(*ast.ValueSpec); ok {
					for place, name := range value.Names {
						if place < len(value.Values) {
							t.symbols[pkg][name.Name] = symbol{expr: value.Values[place], file: own}
						}
					}
				}
			}
		}
	}
}

func (t *tree) embedded(name string, of ast.Expr) {
	if fields, ok := of.(*ast.StructType); ok {
		for _, field := range fields.Fields.List {
			if len(field.Names) == 0 {
				t.embeds[name] = append(t.embeds[name], receiver(field.Type))
			}
		}
	}
}

// method finds a method of a type, or of a type of the same package that it embeds.
func (t *tree) method(pkg, typ, name string) (symbol, bool) {
	if found, ok := t.find(pkg, typ+"."+name); ok && found.fn != nil {
		return found, true
	}
	for _, each := range t.embeds[pkg+"."+typ] {
		if found, ok := t.method(pkg, each, name); ok && each != typ {
			return found, true
		}
	}
	return symbol{}, false
}

func receiver(of ast.Expr) string {
	switch each := of.(type) {
	case *ast.StarExpr:
		return receiver(each.X)
	case *ast.IndexExpr:
		return receiver(each.X)
	case *ast.Ident:
		return each.Name
	}
	return ""
}

func (t *tree) find(pkg, name string) (symbol, bool) {
	found, ok := t.symbols[pkg][name]
	return found, ok
}
