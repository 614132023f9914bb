package accesscontrol

import (
	"context"
	"net/http"
	"time"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/authority"
	"github.com/carillonhq/carillon/pkg/store"
	"github.com/carillonhq/carillon/pkg/task"
)

// resource serves one kind of access records with what all kinds have in common: conditions, stamps, dry runs, audit
// records, and the wait until this node knows a change. Its fields say what differs. A function is required unless its
// comment says what nil means.
type resource[T any] struct {
	*records
	what     string // in messages and errors, such as "node limit"
	object   string // in audit records, such as "node-limit"
	param    string // the parameter of the path that contains the name
	patterns bool   // a name can also be a prefix that ends in *, so that reads and deletions do not check names

	fields func(r *T) serverFields
	find   func(v *authority.View, name string) (T, bool)
	all    func(v *authority.View) []T

	// mayRead refuses callers who may read no record of this kind; nil: the verb of the operation does.
	mayRead func(c *httpapi.Call, v *authority.View, rights *httpapi.Rights) error
	// canSee reports whether the caller may read a record; nil: a caller who may read one may read all.
	canSee func(c *httpapi.Call, v *authority.View, r *T) bool
	// missing returns the error for a record that does not exist or that the caller may not read; nil: notFound.
	missing func(name string) error

	// check checks what a request contains.
	check func(r *T) error
	// mayWrite refuses callers who may not make a change. before is nil if there is no record, and after is nil if the record
	// would be deleted. It comes before the conditions of the request, whose errors tell what exists. It can complete after.
	mayWrite func(c *httpapi.Call, v *authority.View, rights *httpapi.Rights, before, after *T) error
	// checkCount refuses another record if there are too many; nil: there can be any number.
	checkCount func(c *httpapi.Call, v *authority.View) error
	// covers refuses to give more than the caller holds, by rules that each attempt of the write judges again (see
	// httpapi.Rights.Check); nil: the record gives nothing. It is not called if the record would not change.
	covers func(c *httpapi.Call, rights *httpapi.Rights, after *T) error
	// namespaces returns the namespaces whose readers may see the audit record of a change; nil: none.
	namespaces func(before, after *T) []string

	put func(s *store.Store, ctx context.Context, mod int64, r T, now time.Time) (int64, error)
	// remove deletes a record with the caller's rights. It refuses to delete one that is in use.
	remove func(c *httpapi.Call, rights *httpapi.Rights, r *T) error
}

// serverFields are the name of a record and the fields that the server sets.
type serverFields struct {
	name, uid            *string // uid is nil if records of this kind have none
	createdAt, updatedAt *task.Time
	createdBy, updatedBy **task.Actor
	revision             *int64
}

// copyTo sets what the server sets, as in an earlier version of the record.
func (f serverFields) copyTo(to serverFields) {
	*to.createdAt, *to.createdBy = *f.createdAt, *f.createdBy
	*to.updatedAt, *to.updatedBy, *to.revision = *f.updatedAt, *f.updatedBy, *f.revision
	if f.uid != nil {
		*to.uid = *f.uid
	}
}

// stamp sets who changes the record now and, if it is new, its creator and its uid.
func (f serverFields) stamp(isNew bool, now task.Time, actor *task.Actor) {
	*f.updatedAt, *f.updatedBy = now, actor
	if !isNew {
		return
	}

	*f.createdAt, *f.createdBy = now, actor
	if f.uid != nil {
		*f.uid = task.NewUID()
	}
}

// nameInPath returns the name in the path after checking it.
func (re *resource[T]) nameInPath(c *httpapi.Call) (string, error) {
	name := c.Request.PathValue(re.param)
	if re.patterns {
		return name, nil
	}

	return name, task.CheckName(re.what, name)
}

// findOrNil returns the record of a name; nil if there is none.
func (re *resource[T]) findOrNil(v *authority.View, name string) *T {
	r, ok := re.find(v, name)
	return existing(ok, &r)
}

// errMissing returns the error for a record that does not exist or that the caller may not read.
func (re *resource[T]) errMissing(name string) error {
	switch {
	case re.missing != nil:
		return re.missing(name)
	case re.patterns:
		return notFound(re.what, task.Quote(name))
	}

	return notFound(re.what, name)
}

// requireRead refuses callers who may not read a record. r is nil if it does not exist.
func (re *resource[T]) requireRead(c *httpapi.Call, v *authority.View, rights *httpapi.Rights, name string, r *T) error {
	if re.mayRead != nil {
		if err := re.mayRead(c, v, rights); err != nil {
			return err
		}
	}

	if r == nil || re.canSee != nil && !re.canSee(c, v, r) {
		return re.errMissing(name)
	}

	return nil
}

// list serves the records that the caller may see and for which matches returns true.
func (re *resource[T]) list(c *httpapi.Call, q httpapi.PageQuery, matches func(r *T) bool) (httpapi.Answer, error) {
	v, err := re.keeper.Current(c.Context())
	if err != nil {
		return httpapi.Answer{}, err
	}
	if re.mayRead != nil {
		if err := re.mayRead(c, v, c.Rights()); err != nil {
			return httpapi.Answer{}, err
		}
	}

	var list []T
	for _, r := range re.all(v) {
		if matches(&r) && (re.canSee == nil || re.canSee(c, v, &r)) {
			list = append(list, r)
		}
	}

	return pageOf(c, q, list, func(r T) string { return *re.fields(&r).name })
}

// listAll serves the records that the caller may see.
func (re *resource[T]) listAll(c *httpapi.Call, q httpapi.PageQuery) (httpapi.Answer, error) {
	return re.list(c, q, func(*T) bool { return true })
}

// get serves one record.
func (re *resource[T]) get(c *httpapi.Call) (httpapi.Answer, error) {
	name, err := re.nameInPath(c)
	if err != nil {
		return httpapi.Answer{}, err
	}

	v, err := re.keeper.Current(c.Context())
	if err != nil {
		return httpapi.Answer{}, err
	}

	r := re.findOrNil(v, name)
	if err := re.requireRead(c, v, c.Rights(), name, r); err != nil {
		return httpapi.Answer{}, err
	}

	return answerRecord(*r, *re.fields(r).revision)
}

// set creates or replaces the record in the path, and returns it with its new revision. A dry run writes nothing, and also
// returns how the record would change; otherwise, the change is nil.
func (re *resource[T]) set(c *httpapi.Call, dryRun bool) (T, *client.Change, error) {
	var asked, result T
	var dry *client.Change

	if err := c.Decode(&asked); err != nil {
		return result, nil, err
	}
	name := c.Request.PathValue(re.param)
	if err := sameName(re.fields(&asked).name, name); err != nil {
		return result, nil, err
	}
	if err := re.check(&asked); err != nil {
		return result, nil, err
	}

	err := re.changeRecords(c, func(v *authority.View, rights *httpapi.Rights) error {
		before, after := re.findOrNil(v, name), asked
		if err := re.mayWrite(c, v, rights, before, &after); err != nil {
			return err
		}

		var old T
		if before != nil {
			old = *before
		}
		revision := *re.fields(&old).revision
		if err := checkConditions(c, re.what, name, revision); err != nil {
			return err
		}

		if before == nil && re.checkCount != nil {
			if err := re.checkCount(c, v); err != nil {
				return err
			}
		}

		re.fields(&old).copyTo(re.fields(&after))
		result = after
		changes := task.AccessChanges(before, &after)

		if dryRun {
			// The answer shows what the record contains now, so the right to write it is not enough.
			if before != nil {
				if err := re.requireRead(c, v, rights, name, before); err != nil {
					return err
				}
			}
			dry = changeOf(before != nil, changes)
		}
		if before != nil && len(changes) == 0 {
			return nil
		}

		re.fields(&after).stamp(before == nil, re.now.Stamp(), c.Actor())
		if re.covers != nil {
			if err := re.covers(c, rights, &after); err != nil {
				return err
			}
		}
		if dryRun {
			return nil
		}

		rights.Describe(re.describe(name, before, &after))

		var err error
		*re.fields(&after).revision, err = re.put(re.store.As(rights), c.Context(), revision, after, re.now())
		result = after

		return httpapi.About(re.what+" "+name, err)
	})
	if err != nil {
		return result, nil, err
	}

	re.awaitView(c, func(v *authority.View) bool { return v.Fence >= *re.fields(&result).revision })

	return result, dry, nil
}

// changeOf returns how a write would change a record.
func changeOf(exists bool, fields []task.FieldChange) *client.Change {
	change := &client.Change{Result: client.Configured, Fields: fields}
	switch {
	case !exists:
		change.Result = client.Created
	case len(fields) == 0:
		change.Result = client.Unchanged
	}

	return change
}

// delete serves the deletion of a record.
func (re *resource[T]) delete(c *httpapi.Call) (httpapi.Answer, error) {
	name, err := re.nameInPath(c)
	if err != nil {
		return httpapi.Answer{}, err
	}

	err = re.changeRecords(c, func(v *authority.View, rights *httpapi.Rights) error {
		r := re.findOrNil(v, name)
		if err := re.mayWrite(c, v, rights, r, nil); err != nil {
			return err
		}
		if r == nil {
			return re.errMissing(name)
		}
		if err := checkConditions(c, re.what, name, *re.fields(r).revision); err != nil {
			return err
		}

		rights.Describe(re.describe(name, r, nil))

		return httpapi.About(re.what+" "+name, re.remove(c, rights, r))
	})
	if err != nil {
		return httpapi.Answer{}, err
	}

	re.awaitView(c, func(v *authority.View) bool { return re.findOrNil(v, name) == nil })

	return httpapi.Answer{Status: http.StatusNoContent}, nil
}

// describe returns what the audit record of a change says. before is nil for a new record, and after for a deleted one.
func (re *resource[T]) describe(name string, before, after *T) task.AuditObject {
	o := task.AuditObject{Kind: re.object, Name: name, Changes: task.AccessChanges(before, after)}
	if re.namespaces != nil {
		o.Namespaces = re.namespaces(before, after)
	}

	return o
}

// maxCreated is the maximum number of records of a kind that were created by one subject that does not administer the
// cluster.
const maxCreated = 500

// checkCreated refuses another record if the caller has created too many.
func (re *resource[T]) checkCreated(c *httpapi.Call, v *authority.View) error {
	if v.Administers(caller(c), re.now()) {
		return nil
	}

	who, created := httpapi.CallerOf(c.Context()), 0
	for _, r := range re.all(v) {
		if (*re.fields(&r).createdBy).Is(who.Who) {
			created++
		}
	}
	if created < maxCreated {
		return nil
	}

	return httpapi.Fail(http.StatusConflict, client.CodeConflict, "%s has created %d %ss that still exist; at most %d are allowed", who.Name(), created, re.what, maxCreated).
		WithHint("delete those that are no longer used")
}
