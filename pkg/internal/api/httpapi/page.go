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
