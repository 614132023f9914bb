package mutant

import (
	"go/ast"
	"go/parser"
	gotoken "go/token"
	"reflect"
	"slices"
	"strings"
)

// isOriginalWhenOff reports whether a patched source is the original one when all mutants are off: it replaces each call of
// mutant by false, simplifies what follows from that, and compares the syntax trees.
func isOriginalWhenOff(original, patched []byte) (bool, error) {
	var dumps []string
	for _, source := range [][]byte{original, patched} {
		file, err := parser.ParseFile(gotoken.NewFileSet(), "", source, parser.SkipObjectResolution)
		if err != nil {
			return false, err
		}

		fold(reflect.ValueOf(file))

		// Two trees are equal if they differ in positions only.
		var text strings.Builder
		err = ast.Fprint(&text, nil, file, func(name string, v reflect.Value) bool {
			return v.Type() != reflect.TypeFor[gotoken.Pos]() && ast.NotNilFilter(name, v)
		})
		if err != nil {
			return false, err
		}
		dumps = append(dumps, text.String())
	}

	return dumps[0] == dumps[1], nil
}

// fold simplifies all expressions and statements below a node.
func fold(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			fold(v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			fold(v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fold(v.Field(i))
			}
		}
	}

	if !v.CanSet() {
		return
	}

	switch node := v.Interface().(type) {
	case *ast.IfStmt:
		// An else that is left out.
		if node != nil && node.Else != nil {
			switch rest := foldStatement(node.Else); {
			case len(rest) == 0:
				node.Else = nil
			case len(rest) == 1 && isIf(rest[0]):
				node.Else = rest[0]
			default:
				node.Else = &ast.BlockStmt{List: rest}
			}
		}
	case []ast.Stmt:
		var list []ast.Stmt
		for _, s := range node {
			if b, ok := s.(*ast.BlockStmt); ok {
				list = append(list, b)
				continue
			}
			list = append(list, foldStatement(s)...)
		}
		v.Set(reflect.ValueOf(list))
	case ast.Expr:
		if v.Kind() == reflect.Interface {
			v.Set(reflect.ValueOf(foldExpression(node)))
		}
	}
}

// isIf reports whether a statement is an if.
func isIf(s ast.Stmt) bool {
	_, ok := s.(*ast.IfStmt)
	return ok
}

// foldStatement returns what is left of a statement whose expressions are simplified.
func foldStatement(s ast.Stmt) []ast.Stmt {
	switch s := s.(type) {
	case *ast.BlockStmt:
		return s.List
	case *ast.IfStmt:
		switch {
		case s.Init != nil:
		case isConstant(s.Cond, "true"):
			return s.Body.List
		case isConstant(s.Cond, "false") && s.Else == nil:
			return nil
		case isConstant(s.Cond, "false"):
			return foldStatement(s.Else)
		}
	case *ast.CaseClause:
		if len(s.List) > 0 {
			s.List = slices.DeleteFunc(s.List, func(e ast.Expr) bool { return isConstant(e, "false") })
			if len(s.List) == 0 {
				return nil
			}
		}
	}

	return []ast.Stmt{s}
}

// foldExpression returns a simplified expression. Its operands are simplified already. In x && mutant("name"), it leaves out
// x, too: patches combine conditions, which have no effects.
func foldExpression(e ast.Expr) ast.Expr {
	switch e := e.(type) {
	case *ast.ParenExpr:
		return e.X
	case *ast.CallExpr:
		if f, ok := e.Fun.(*ast.Ident); ok && f.Name == "mutant" {
			return ast.NewIdent("false")
		}
	case *ast.UnaryExpr:
		switch {
		case e.Op == gotoken.NOT && isConstant(e.X, "false"):
			return ast.NewIdent("true")
		case e.Op == gotoken.NOT && isConstant(e.X, "true"):
			return ast.NewIdent("false")
		}
	case *ast.BinaryExpr:
		and, or := e.Op == gotoken.LAND, e.Op == gotoken.LOR
		switch {
		case and && isConstant(e.X, "false"), or && isConstant(e.X, "true"), and && isConstant(e.Y, "true"), or && isConstant(e.Y, "false"):
			return e.X
		case and && isConstant(e.X, "true"), or && isConstant(e.X, "false"), and && isConstant(e.Y, "false"):
			return e.Y
		}
	}

	return e
}

// isConstant reports whether an expression is this identifier.
func isConstant(e ast.Expr, name string) bool {
	i, ok := e.(*ast.Ident)
	return ok && i.Name == name
}
