package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
)

// packages are the packages that define records, with their directories.
var packages = map[string]string{
	"task":   "pkg/task",
	"record": "pkg/store/record",
	"store":  "pkg/store",
	"ledger": "pkg/internal/ledger",
}

// types contains the types of the packages by their qualified name, such as task.Run.
type types map[string]*typeDecl

// typeDecl is the declaration of a type.
type typeDecl struct {
	pkg     string
	expr    ast.Expr
	doc     string
	methods []string
}

// field is a field of a record.
type field struct {
	name  string // in Go
	key   string // in JSON
	typ   string // qualified, such as []task.Attempt
	omit  string // omitempty, omitzero, or "" if the field is always present
	codec string // the struct tag "record": see package record
	doc   string
}

// readPackages reads the declarations of types, without tests.
func readPackages(root string) (types, error) {
	all := types{}

	for name, dir := range packages {
		files, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
		if err != nil || len(files) == 0 {
			return nil, fmt.Errorf("%s: no Go files in %s: %v", name, dir, err)
		}

		set := token.NewFileSet()
		for _, path := range files {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}

			file, err := parser.ParseFile(set, path, nil, parser.ParseComments)
			if err != nil {
				return nil, err
			}

			all.addFile(name, file)
		}
	}

	return all, nil
}

// addFile adds the types and methods of a file. A method may be declared before its type.
func (t types) addFile(pkg string, file *ast.File) {
	declOf := func(name string) *typeDecl {
		name = pkg + "." + name
		if t[name] == nil {
			t[name] = &typeDecl{pkg: pkg}
		}
		return t[name]
	}

	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if s, ok := s.(*ast.TypeSpec); ok {
					decl := declOf(s.Name.Name)
					decl.expr, decl.doc = s.Type, firstText(s.Doc, d.Doc)
				}
			}
		case *ast.FuncDecl:
			if d.Recv == nil {
				continue
			}

			receiver := d.Recv.List[0].Type
			if star, ok := receiver.(*ast.StarExpr); ok {
				receiver = star.X
			}

			if name, ok := receiver.(*ast.Ident); ok {
				decl := declOf(name.Name)
				decl.methods = append(decl.methods, d.Name.Name)
			}
		}
	}
}

// isStruct reports whether a qualified name is that of a struct.
func (t types) isStruct(name string) bool {
	if t[name] == nil {
		return false
	}

	_, ok := t[name].expr.(*ast.StructType)

	return ok
}

// hasMethod reports whether a type has a method.
func (t types) hasMethod(name, method string) bool {
	return t[name] != nil && slices.Contains(t[name].methods, method)
}

// fieldsOf returns the JSON fields of a struct in their order. It descends into embedded structs, but not into those that
// stop returns true for; each of these is a field without a key.
func (t types) fieldsOf(name string, stop func(embedded string) bool) ([]field, error) {
	if !t.isStruct(name) {
		return nil, fmt.Errorf("%s is not a struct in %v", name, packages)
	}

	var list []field
	decl := t[name]

	for _, f := range decl.expr.(*ast.StructType).Fields.List {
		typ := qualify(decl.pkg, f.Type)

		var tag reflect.StructTag
		if f.Tag != nil {
			tag = reflect.StructTag(strings.Trim(f.Tag.Value, "`"))
		}

		key, omit, _ := strings.Cut(tag.Get("json"), ",")

		switch {
		case len(f.Names) == 0 && stop(typ):
			list = append(list, field{name: typ[strings.Index(typ, ".")+1:], typ: typ})
		case len(f.Names) == 0:
			inner, err := t.fieldsOf(typ, stop)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", name, err)
			}

			list = append(list, inner...)
		case key == "" || key == "-":
		case len(f.Names) > 1:
			return nil, fmt.Errorf("%s: %v share the key %q", name, f.Names, key)
		default:
			doc := tag.Get("doc")
			if doc == "" {
				doc = firstText(f.Comment, f.Doc)
			}

			list = append(list, field{name: f.Names[0].Name, key: key, typ: typ, omit: omit, codec: tag.Get("record"), doc: doc})
		}
	}

	return list, nil
}

// firstText returns the text of the first comment that is not empty, in one line.
func firstText(groups ...*ast.CommentGroup) string {
	for _, g := range groups {
		if text := strings.Join(strings.Fields(g.Text()), " "); text != "" {
			return text
		}
	}

	return ""
}

// qualify returns the text of a type in which each name of a type of the package is qualified.
func qualify(pkg string, e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		if ast.IsExported(e.Name) {
			return pkg + "." + e.Name
		}
		return e.Name
	case *ast.SelectorExpr:
		return qualify("", e.X) + "." + e.Sel.Name
	case *ast.StarExpr:
		return "*" + qualify(pkg, e.X)
	case *ast.ArrayType:
		return "[]" + qualify(pkg, e.Elt)
	case *ast.MapType:
		return "map[" + qualify(pkg, e.Key) + "]" + qualify(pkg, e.Value)
	}

	return fmt.Sprintf("%T", e)
}
