package httpapi

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding"
	"encoding/base64"
	"fmt"
	"maps"
	"math"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/danielgtaylor/huma/v2"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/task"
)

// Handler is the implementation of an operation. Query and NoQuery create one.
type Handler struct {
	query   queryType                           // the parameters
	prepare func(url.Values) (serveFunc, error) // parses the parameters and returns the function that serves the call
}

// serveFunc serves a call whose parameters are parsed.
type serveFunc func(*Call) (Answer, error)

// NoQuery returns a handler for an operation without query parameters.
func NoQuery(serve func(*Call) (Answer, error)) Handler {
	return Handler{prepare: func(url.Values) (serveFunc, error) { return serve, nil }}
}

// Query returns a handler for an operation whose query parameters are the fields of Q. The type and the tags of
// a field declare its parameter. Both the OpenAPI document and the parser use this declaration:
//
//	type listQuery struct {
//		Selector string `query:"selector" doc:"Labels."`
//		Recent   int    `query:"recent" minimum:"0" maximum:"100" default:"0" doc:"How many runs."`
//		PageQuery
//	}
//
// A field is a string, an int, an int64, a bool, or a type that implements encoding.TextUnmarshaler. If the
// latter returns a *task.Error, Query adds the parameter's name to it. An absent parameter has its default or
// the zero value; a pointer field is nil then. The tags are those of huma. minimum, maximum and default are
// enforced here; all others are only part of the document. A task.Time can be written in all ways that schedule.ReadMoment
// accepts, in UTC; in the past unless the tag direction is "future". If *Q has a method Check(given url.Values) error, it
// is called last.
func Query[Q any](serve func(*Call, Q) (Answer, error)) Handler {
	query := newQueryType(reflect.TypeFor[Q]())

	return Handler{query: query, prepare: func(values url.Values) (serveFunc, error) {
		var q Q
		if err := query.decodeValues(values, reflect.ValueOf(&q).Elem()); err != nil {
			return nil, err
		}

		if c, ok := any(&q).(interface{ Check(url.Values) error }); ok {
			if err := c.Check(values); err != nil {
				return nil, err
			}
		}

		return func(c *Call) (Answer, error) { return serve(c, q) }, nil
	}}
}

// queryType is a struct with query parameters.
type queryType []parameter

// parameter is one field of a queryType.
type parameter struct {
	name      string // as in the query
	field     reflect.StructField
	index     []int              // of the field, through embedded structs: see reflect.Value.FieldByIndex
	low, high int64              // the range of a number, inclusive
	otherwise string             // the default as text; "": none
	direction schedule.Direction // of a time that is written without a date
}

// newQueryType returns the fields of a struct, including those of embedded structs, in their order. It panics
// if a field has an unsupported type or an invalid tag, because that is a programming error.
func newQueryType(t reflect.Type) queryType {
	var list queryType
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous {
			for _, p := range newQueryType(f.Type) {
				p.index = append([]int{i}, p.index...)
				list = append(list, p)
			}
			continue
		}

		p := parameter{name: f.Tag.Get("query"), field: f, index: []int{i}, low: math.MinInt64, high: math.MaxInt64, otherwise: f.Tag.Get("default"), direction: schedule.Past}
		if f.Tag.Get("direction") == "future" {
			p.direction = schedule.Future
		}
		bound := func(tag string, to *int64) {
			text, has := f.Tag.Lookup(tag)
			v, err := strconv.ParseInt(text, 10, 64)
			if has && err != nil {
				panic(fmt.Sprintf("%s.%s: %s:%q is not a whole number", t, f.Name, tag, text))
			}

			if has {
				*to = v
			}
		}

		bound("minimum", &p.low)
		bound("maximum", &p.high)

		if p.name == "" {
			panic(fmt.Sprintf("%s.%s has no tag query", t, f.Name))
		}

		if p.otherwise != "" {
			if err := p.setField(reflect.New(t).Elem().Field(i), p.otherwise); err != nil {
				panic(fmt.Sprintf("%s.%s: default %q: %s", t, f.Name, p.otherwise, err))
			}
		}

		list = append(list, p)
	}

	return list
}

// decodeValues parses the values into a struct. readQuery has checked that each name is known and occurs once.
func (t queryType) decodeValues(values url.Values, to reflect.Value) error {
	for _, p := range t {
		text := p.otherwise
		if values.Has(p.name) {
			text = values.Get(p.name)
		} else if text == "" {
			continue
		}

		if err := p.setField(to.FieldByIndex(p.index), text); err != nil {
			return err
		}
	}

	return nil
}

// setField parses the text of a parameter into its field.
func (p parameter) setField(to reflect.Value, text string) error {
	if to.Kind() == reflect.Pointer {
		to.Set(reflect.New(to.Type().Elem()))
		to = to.Elem()
	}

	switch v := to.Addr().Interface().(type) {
	case *task.Time:
		at, err := schedule.ReadInstant(text, schedule.TimeBase{Now: time.Now(), Direction: p.direction})
		*v = task.At(at)
		return task.Under(p.name, err)
	case encoding.TextUnmarshaler:
		return task.Under(p.name, v.UnmarshalText([]byte(text)))
	case *string:
		*v = text
	case *bool:
		if text != "true" && text != "false" {
			return task.Invalid(task.CodeBadValue, p.name, "%s is neither true nor false", task.Quote(text))
		}
		*v = text == "true"
	case *int, *int64:
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return task.Invalid(task.CodeBadValue, p.name, "%s is not a whole number", task.Quote(text))
		}
		if n < p.low || n > p.high {
			return task.Invalid(task.CodeOutOfRange, p.name, "%d is not between %d and %d", n, p.low, p.high)
		}

		to.SetInt(n)
	default:
		panic(fmt.Sprintf("query parameter %s is a %s", p.name, to.Type()))
	}

	return nil
}

// describeParameters returns the parameters for the OpenAPI document.
func (t queryType) describeParameters(schemas huma.Registry) []*huma.Param {
	list := make([]*huma.Param, len(t))
	for i, p := range t {
		f := p.field
		if f.Type.Kind() == reflect.Pointer {
			f.Type = f.Type.Elem() // a parameter may be absent, but is never null
		}

		if reflect.PointerTo(f.Type).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
			f.Type = reflect.TypeFor[string]() // huma would convert defaults and examples to the field's type
		}

		s := *huma.SchemaFromField(schemas, f, "")
		about := s.Description

		s.Description = "" // the parameter itself has the description
		if f.Type.Kind() == reflect.Int {
			s.Format = "" // the size of the Go type does not matter to callers
		}

		list[i] = &huma.Param{Name: p.name, In: "query", Description: about, Schema: &s}
	}

	return list
}

// readQuery parses the query of a request. It rejects names that are not parameters of t, repeated parameters,
// and control characters.
func (t queryType) readQuery(r *http.Request) (url.Values, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, Fail(http.StatusBadRequest, client.CodeBadParameter, "the query cannot be parsed: %s", Shorten(err.Error()))
	}

	for name, values := range q {
		known := slices.ContainsFunc(t, func(p parameter) bool { return p.name == name })
		if !known {
			return nil, task.Invalid(task.CodeUnknown, cutField(name), "is not a parameter of this route")
		}
		if len(values) > 1 {
			return nil, task.Invalid(task.CodeDuplicate, name, "is given %d times", len(values))
		}
		if !isPrintable(values[0]) {
			return nil, task.Invalid(task.CodeBadValue, name, "%s contains control characters or is not UTF-8", task.Quote(values[0]))
		}
	}

	return q, nil
}

// isPrintable reports whether a value is valid UTF-8 without control characters.
func isPrintable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f })
}

// cutField shortens and quotes a name that the caller has invented, for use as a field name in a problem.
func cutField(name string) string { return strings.Trim(task.Quote(name), `"`) }

// pageSigner creates and checks page tokens. A token contains the place where the next page begins, and an HMAC
// over that place and the list with its filters. So a token is valid only for one list of one cluster. The key
// is derived from the cluster's id, so every node accepts the tokens of the others. The HMAC detects mistakes;
// it protects nothing secret.
type pageSigner struct{ key [sha256.Size]byte }

// newPageSigner returns the signer of a cluster.
func newPageSigner(cluster string) pageSigner {
	return pageSigner{sha256.Sum256([]byte("carillon page token\x00" + cluster))}
}

const pageSum = 12 // bytes of the HMAC in a token

// signature returns the HMAC of a place in a list.
func (p pageSigner) signature(list, after string) []byte {
	m := hmac.New(sha256.New, p.key[:])
	m.Write([]byte(list + "\x00" + after))
	return m.Sum(nil)[:pageSum]
}

// signToken returns the token of the page that begins after a place.
func (p pageSigner) signToken(list, after string) string {
	return base64.RawURLEncoding.EncodeToString(append(p.signature(list, after), after...))
}

// openToken returns the place in a token. It returns an error if the token belongs to another list.
func (p pageSigner) openToken(list, token string) (after string, err error) {
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(b) <= pageSum || !hmac.Equal(b[:pageSum], p.signature(list, string(b[pageSum:]))) {
		return "", task.Invalid(client.CodeBadPage, "page", "%s is not a page token of this list", task.Quote(token))
	}
	return string(b[pageSum:]), nil
}

// listOf identifies the list that a request reads: its path and all filters, without the page and its size.
func listOf(c *Call) string {
	q := maps.Clone(c.query)
	q.Del("page")
	q.Del("limit")

	return c.Request.URL.Path + "?" + q.Encode()
}

// Paging is the page of a list that a request reads.
type Paging struct {
	list  string // identifies the list
	After string // where the previous page ended; "" for the first page
	Limit int    // the maximum number of items
}

// PageQuery are the parameters of a list with pages.
type PageQuery struct {
	Limit int     `query:"limit" minimum:"1" maximum:"5000" default:"500" doc:"Maximum number of items on a page."`
	Page  *string `query:"page" doc:"The token in next of the previous page."`
}

// Paging returns the requested page. It returns an error if the page token belongs to another list.
func (c *Call) Paging(q PageQuery) (Paging, error) {
	p := Paging{list: listOf(c), Limit: q.Limit}

	if q.Page == nil {
		return p, nil
	}

	var err error
	p.After, err = c.reader.pages.openToken(p.list, *q.Page)

	return p, err
}

// Page answers with one page of a list. after is where the next page begins; "" means that this is the last
// page.
func Page[T any](c *Call, p Paging, items []T, after string) (Answer, error) {
	return Answer{Status: http.StatusOK, Body: newPage(c, p, items, after)}, nil
}

// QueryPage is Page for a list that the owners of shards have answered.
func QueryPage[T any](c *Call, p Paging, items []T, after string, info client.ListInfo) (Answer, error) {
	return Answer{Status: http.StatusOK, Body: client.QueryList[T]{List: newPage(c, p, items, after), ListInfo: info}}, nil
}

// newPage returns a page of a list with the token of the next one.
func newPage[T any](c *Call, p Paging, items []T, after string) client.List[T] {
	if items == nil {
		items = []T{}
	}

	l := client.List[T]{Items: items}
	if after != "" {
		l.Next = c.reader.pages.signToken(p.list, after)
	}

	return l
}

// All answers with a list that is not divided into pages.
func All[T any](items []T) (Answer, error) {
	if items == nil {
		items = []T{}
	}
	return Answer{Status: http.StatusOK, Body: client.List[T]{Items: items}}, nil
}

// Cursor joins the parts of a place in a list. The parts must not contain spaces.
func Cursor(parts ...string) string { return strings.Join(parts, " ") }
