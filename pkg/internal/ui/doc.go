// Package ui serves the web pages of a node, below /ui, and the manual at /docs. A page shows what the API answers, as HTML, and its forms do what
// the API can do.
//
// The package has no access of its own to anything: each page calls the node's API in the same process through package
// client, with the credential of its viewer. So rights, limits and audit records are those of the API.
//
// A page is a Screen: a function that loads its data through the API, a template, and the names of those parts of the
// template that change while somebody watches. The URL is the whole state of a page, and pages work without scripts.
//
// # Sessions
//
// The cookie of a session contains its secret and the time at which a person last used it, sealed with a key that all nodes
// have. A session that nobody has used for an hour opens nothing. Requests for pages and files, and forms, count as use and
// renew the cookie. Streams do not.
//
// # Live parts
//
// Each open tab has one stream of server-sent events, /ui/live?at=PATH. The node renders the live parts of a page at most
// once a second while somebody watches it, and sends the parts that have changed to all viewers with the same rights:
// viewers share a rendering only if they have the same access.Digest, and a rendering is used only if no access record
// has changed while it was made. When the rights of a viewer change, its stream starts over with the whole state.
//
// At most one message waits for each viewer. A viewer that is too slow for that gets the whole state next. While the API
// cannot answer, for example because etcd is away, viewers keep what they see, with its age. A page that is opened then
// shows the last known state, if its viewer has seen one, and its stream makes it current when the API answers again.
//
// A screen may also have a Feed, whose events are only for one viewer and not shared, such as the output of a run. They
// travel on the same stream, because browsers open few connections to a server. The output of a run reaches a page in
// messages of limited size at a limited rate, and the page keeps a limited number of lines.
//
// # Content Security Policy
//
// Pages contain no inline script or style. Values of attributes that htmx interprets are written only by View.Link and
// the template function vals, because html/template does not know these attributes; a test checks that.
package ui
