package httpapi

import (
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/internal/authority"
)

// Refusal returns why the access records of a view forbid something for which the caller needs all rights; nil if
// they do not. It is for rules that handlers pass to Check: unlike Require, it judges by the view that it gets, and
// remembers nothing.
func (r *Rights) Refusal(v *authority.View, needs ...access.Need) error {
	for _, need := range needs {
		if err := r.refusalOf(v, need); err != nil {
			return err
		}
	}

	return nil
}

// NoNamespace returns the error for a namespace that has no record, or that the caller may not read.
func NoNamespace(namespace string) error { return noNamespace(namespace) }
