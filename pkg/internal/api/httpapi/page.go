package httpapi

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"maps"
	"net/http"
	"strings"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/task"
)

// pageSigner makes page tokens that are good for one list of one cluster: the
// place to go on from, and a sum over it, the list and its filters. Any node
// reads what another made.
type pageSigner struct{ key [sha256.Size]byte }

func newPageSigner(cluster string) pageSigner {
	return pageSigner{sha256.Sum256([]byte("carillon page token\x00" + cluster))}
}

const pageSum = 12 // bytes

func (p pageSigner) sum(list, after string) []byte {
	m := hmac.New(sha256.New, p.key[:])
	m.Write([]byte(list + "\x00" + after))
	return m.Sum(nil)[:pageSum]
}

func (p pageSigner) sign(list, after string) string {
	return base64.RawURLEncoding.EncodeToString(append(p.sum(list, after), after...))
}

func (p pageSigner) open(list, token string) (after string, err error) {
	b, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil || len(b) <= pageSum || !hmac.Equal(b[:pageSum], p.sum(list, string(b[pageSum:]))) {
		return "", task.Invalid(client.CodeBadPage, "page", "%s is not a page of this list", task.Quote(token))
	}
	return string(b[pageSum:]), nil
}

// listOf names the list that a request asks for: its path and all filters, but
// not the page and its size.
func listOf(c *Call) string {
	q := maps.Clone(c.query)
	q.Del("page")
	q.Del("limit")

	return c.Request.URL.Path + "?" + q.Encode()
}

// Paging is the part of a list that a request asks for.
type Paging struct {
	list  string
	After string // where the page before ended; "" for the first
	Limit int
}

// PageQuery are the parameters of a list that has pages.
type PageQuery struct {
	Limit int     `query:"limit" minimum:"1" maximum:"5000" default:"500" doc:"Maximum number of items on a page."`
	Page  *string `query:"page" doc:"The token in next of the page before."`
}

// Paging opens the token of a page.
func (c *Call) Paging(q PageQuery) (Paging, error) {
	p := Paging{list: listOf(c), Limit: q.Limit}

	if q.Page == nil {
		return p, nil
	}

	var err error
	p.After, err = c.reader.pages.open(p.list, *q.Page)

	return p, err
}

// Page answers with a page of a list. after is where the next one goes on; ""
// if this is the last.
func Page[T any](c *Call, p Paging, items []T, after string) (Answer, error) {
	if items == nil {
		items = []T{}
	}

	l := client.List[T]{Items: items}
	if after != "" {
		l.Next = c.reader.pages.sign(p.list, after)
	}

	return Answer{Status: http.StatusOK, Body: l}, nil
}

// All answers with a list that has no pages.
func All[T any](items []T) (Answer, error) {
	if items == nil {
		items = []T{}
	}
	return Answer{Status: http.StatusOK, Body: client.List[T]{Items: items}}, nil
}

// Cursor joins what a place in a list consists of; names have no spaces.
func Cursor(parts ...string) string { return strings.Join(parts, " ") }
