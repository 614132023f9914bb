package api

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/danielgtaylor/huma/v2"

	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/api/accesscontrol"
	"github.com/carillonhq/carillon/pkg/internal/api/cluster"
	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/tasks"
	"github.com/carillonhq/carillon/pkg/internal/schema"
)

// document builds the OpenAPI document of the routes.
type document struct {
	doc     *huma.OpenAPI
	schemas huma.Registry
	problem *huma.Schema
}

// newDocument returns a document without operations.
// conventions describes what all operations have in common.
const conventions = `Programs use this API to do what the command line does. Any node answers for the whole cluster.

- Every request except health checks and logins requires ` + "`Authorization: Bearer TOKEN`" + `, also on loopback.
- JSON is snake_case. Times are RFC 3339 in UTC with milliseconds, durations are Go's (` + "`1m30s`" + `). Fields may be added, but are
  never renamed. An unknown parameter or field is rejected.
- A list is ` + "`{\"items\": […], \"next\": TOKEN}`; `page=TOKEN`" + ` requests the next page.
- An error is a problem (RFC 9457, ` + "`application/problem+json`) with `code`, `field`, `detail` and `hint`" + `.
- 401: missing or invalid token. 400, 422: invalid request. 503: etcd or the node does not answer at the moment.
- A change is sent to etcd once. 504 means that the outcome is unknown; ` + "`id`" + ` names the run or task that may exist.
`

func newDocument(version string) *document {
	cfg := huma.DefaultConfig("Carillon", version)
	reg := newRegistry(&cfg)
	d := &document{schemas: reg, doc: cfg.OpenAPI}
	d.doc.OpenAPI = "3.1.0"
	d.doc.Info.Description = conventions
	d.doc.Info.License = &huma.License{Name: "Apache 2.0", Identifier: "Apache-2.0"}
	d.doc.Servers = []*huma.Server{{URL: "/", Description: "The node that serves this document. Any node answers for the cluster."}}
	d.doc.Components.SecuritySchemes = map[string]*huma.SecurityScheme{
		"token": {Type: "http", Scheme: "bearer", Description: "carillon_ID_SECRET"},
	}
	d.doc.Tags = []*huma.Tag{
		{Name: "tasks", Description: "What to run, when and where."},
		{Name: "runs", Description: "Past, active and queued runs, and their output."},
		{Name: "alerts", Description: "Expectations of tasks that are not met, who was notified and who works on it, and silences."},
		{Name: "events", Description: "Changes in the cluster, as a stream."},
		{Name: "schedules", Description: "The ticks and the meaning of schedules."},
		{Name: "secrets", Description: "Values that tasks refer to and that are never shown."},
		{Name: "access", Description: "Who may do what, and who did it: roles, bindings, namespaces, tokens, subjects and audit records."},
		{Name: "cluster", Description: "Nodes, shards, freezes, and the members of an embedded etcd."},
		{Name: "health", Description: "Liveness and readiness for load balancers and monitoring."},
	}
	d.problem = reg.Schema(reflect.TypeFor[client.Problem](), true, "")

	return d
}

// pathParams describes the parameters in paths.
var pathParams = map[string]string{
	"ns": "A namespace.", "name": "The name of a task.", "node": "The name of a node.",
	"role": "The name of a role.", "binding": "The name of a binding.", "token": "The id of a token.", "subject": "A subject: user:NAME, group:PROVIDER/NAME, service:NAME or cert:NAME.",
	"id": "A run id, or a unique prefix of one.", "kind": "The kind of an alert: failures, success_within, success_by, max_lateness, max_duration or max_pause.", "code": "The code of a problem of the cluster.", "silence": "The ID of a silence.",
	"rule": "The name of a rule of alerts.", "limit": "The name of a node, or a prefix of names that ends in *.", "member": "The name of a member of etcd, or its ID in hexadecimal.",
}

// addRoute adds an operation to the document.
func (d *document) addRoute(rt *httpapi.Operation) {
	op := &huma.Operation{
		OperationID: rt.ID, Method: rt.Method, Path: rt.Path, Summary: rt.Summary, Description: rt.Description,
		Tags: []string{rt.Tag}, Responses: map[string]*huma.Response{},
	}
	for _, name := range rt.PathParams() {
		op.Parameters = append(op.Parameters, &huma.Param{Name: name, In: "path", Required: true,
			Description: pathParams[name], Schema: &huma.Schema{Type: huma.TypeString}})
	}

	op.Parameters = append(op.Parameters, rt.QueryParams(d.schemas)...)
	header := func(name, about string) {
		op.Parameters = append(op.Parameters, &huma.Param{Name: name, In: "header", Description: about, Schema: &huma.Schema{Type: huma.TypeString}})
	}

	if rt.Conditional {
		header("If-Match", "The revision, in quotes, that the task must have; otherwise the answer is 412.")
	}

	if rt.Creates {
		header("If-None-Match", "*: the task must not exist; otherwise the answer is 409.")
	}

	if rt.Revalidated {
		header("If-None-Match", "The ETag of an answer that you have: while it is the current one, the answer is 304 without a body.")
	}

	if rt.Idempotent {
		header(client.IdempotencyKeyHeader, "Names this request, so that sending it again does not repeat what it does: 1 to 255 printable ASCII characters. "+
			"The same key of the same subject for the same task, or of a creation in the same namespace, gives the run or the task of the first request, with replayed=true, for at least an hour. "+
			"With another body, the answer is 422 with the code key_reused.")
	}

	if rt.Events != nil {
		header("Last-Event-ID", "The id of the last received event, as EventSource sends it: the stream continues after it.")
	}

	if rt.Body != nil {
		op.RequestBody = d.describeBody(rt.Body)
	}

	op.Security = []map[string][]string{{"token": {}}}
	if rt.Public {
		op.Security = []map[string][]string{{}} // an explicit empty requirement: no credentials are needed
	}

	d.describeResponses(op, rt)
	d.doc.AddOperation(op)
}

// describeBody describes the body of a request.
func (d *document) describeBody(b *httpapi.Body) *huma.RequestBody {
	schema := &huma.Schema{Ref: "#/components/schemas/" + b.Schema}
	if b.Of != nil {
		schema = d.schemas.Schema(b.Of, true, "")
	}

	rb := &huma.RequestBody{Required: !b.Optional, Description: b.Doc, Content: map[string]*huma.MediaType{}}
	for _, t := range b.Types {
		rb.Content[t] = &huma.MediaType{Schema: schema}
	}

	return rb
}

// describeResponses describes all answers of an operation, including the problems that it can return.
func (d *document) describeResponses(op *huma.Operation, rt *httpapi.Operation) {
	ok := &huma.Response{Description: http.StatusText(rt.Status)}

	switch {
	case rt.Answer != nil:
		ok.Content = map[string]*huma.MediaType{cmp.Or(rt.AnswerType, httpapi.TypeJSON): {Schema: d.schemas.Schema(rt.Answer, true, "")}}
	case rt.Streams:
		text := &huma.Schema{Type: huma.TypeString}
		if rt.AnswerType != "" {
			text.Format = "binary"
		}
		ok.Content = map[string]*huma.MediaType{cmp.Or(rt.AnswerType, "text/plain"): {Schema: text}}
	}

	if rt.Events != nil {
		ok.Content[httpapi.TypeEventStream] = &huma.MediaType{Schema: d.schemas.Schema(rt.Events, true, "")}
	}

	if rt.Tagged {
		ok.Headers = map[string]*huma.Param{"ETag": {Description: "The revision of the object, in quotes; if the answer is compressed, with -gzip after it. Both can be sent in If-Match and If-None-Match.", Schema: &huma.Schema{Type: huma.TypeString}}}
	}

	op.Responses[strconv.Itoa(rt.Status)] = ok
	// A dry run answers with 200 even where the write would answer with 201 or 204.
	if rt.DryAnswer != nil {
		op.Responses["200"] = &huma.Response{Description: "The result of the change, with dry_run=true",
			Content: map[string]*huma.MediaType{httpapi.TypeJSON: {Schema: d.schemas.Schema(rt.DryAnswer, true, "")}}}
	}

	// An operation may list further statuses that are not errors, such as 206; they have the same content as the
	// normal answer.
	for _, status := range rt.Problems() {
		r := &huma.Response{Description: http.StatusText(status)}
		if status == http.StatusNotModified {
			r.Description = "If-None-Match has the current ETag"
		} else if status >= 300 {
			r.Content = map[string]*huma.MediaType{"application/problem+json": {Schema: d.problem}}
		} else {
			r.Content = ok.Content
		}

		if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
			r.Headers = map[string]*huma.Param{"Retry-After": {Description: "How many seconds to wait before the next request.", Schema: &huma.Schema{Type: huma.TypeInteger}}}
		}

		op.Responses[strconv.Itoa(status)] = r
	}
}

// encode completes the schemas and encodes the document.
func (d *document) encode() (asJSON, asYAML []byte, err error) {
	refineSchemas(d.schemas)

	if asJSON, err = json.Marshal(d.doc); err != nil {
		return nil, nil, fmt.Errorf("write the OpenAPI document: %w", err)
	}
	if asYAML, err = d.doc.YAML(); err != nil {
		return nil, nil, fmt.Errorf("write the OpenAPI document: %w", err)
	}

	return asJSON, asYAML, nil
}

// newRegistry returns the registry of schemas, with the types that describe themselves.
func newRegistry(cfg *huma.Config) huma.Registry {
	reg := cfg.Components.Schemas
	schema.Register(reg)
	return reg
}

// strictObjects names the objects that users send, apart from tasks, with their required fields. Unknown fields are
// rejected, and all other fields are optional.
var strictObjects = map[string][]string{
	"TriggerRequest": nil, "RerunRequest": nil, "ScheduleRequest": {"schedule"},
	"PauseRequest": nil, "SilenceRequest": {"reason"}, "RollbackRequest": nil, "ClusterSettings": nil, "Repairs": {"findings"}, "RepairRequest": {"kind", "key"},
	"TokenRequest": nil, "TokenScope": {"role"},
}

// refineSchemas adds to the schemas what the Go types do not express: defaults, allowed values, and which fields are
// optional.
func refineSchemas(reg huma.Registry) {
	all := reg.Map()
	for name, s := range all {
		for _, p := range s.Properties {
			if p.Type == huma.TypeArray {
				p.Nullable = false // the API always writes [] instead of null
			}
		}

		s.AdditionalProperties = nil // clients must accept unknown fields: later versions may add some
		if required, ok := strictObjects[name]; ok {
			s.AdditionalProperties, s.Required = false, required
		}
	}

	schema.Refine(all)

	if t := all["Task"]; t != nil {
		schema.Spec(t)
	}

	schema.Within(all["ClusterSettings"].Properties["catch_up_rate"], 0, cluster.MaxCatchUpRate, nil)
	schema.Within(all["ScheduleRequest"].Properties["count"], 1, tasks.MaxCount, tasks.DefaultCount)
	all["SpecPatch"] = patchOf(all["Spec"])
}

// patchOf returns the schema of a merge patch, in which any field may be absent or null.
func patchOf(spec *huma.Schema) *huma.Schema {
	p := &huma.Schema{
		Type: huma.TypeObject, AdditionalProperties: false, Properties: map[string]*huma.Schema{},
		Description: "A JSON merge patch of a Spec. Omitted fields stay, null restores the default, objects are merged, lists are replaced.",
	}
	for _, name := range slices.Sorted(maps.Keys(spec.Properties)) {
		field := *spec.Properties[name]
		field.Default = nil
		any := []*huma.Schema{&field, {Type: "null"}}
		if inner, ok := strings.CutPrefix(field.Ref, "#/components/schemas/"); ok {
			any[0] = &huma.Schema{Type: huma.TypeObject, Description: "A merge patch of " + inner + "."}
		}

		if field.AdditionalProperties != nil {
			any[0] = &huma.Schema{Type: huma.TypeObject, Description: "null removes a name, other values are added."}
		}

		p.Properties[name] = &huma.Schema{AnyOf: any, Description: field.Description}
	}

	return p
}

// openAPIDocument is the OpenAPI document of a version by format, plain and compressed.
type openAPIDocument struct {
	once         sync.Once
	text, packed map[string][]byte
	tag          string // an ETag that changes with the document
	err          error
}

// openAPIDocuments are the documents that this process has generated, by version.
var openAPIDocuments sync.Map

// openAPIOf returns the OpenAPI document of a version. Generating it takes longer than the rest of a start, so this happens
// at the first request, and once for all nodes of a process.
func openAPIOf(version string) (*openAPIDocument, error) {
	known, _ := openAPIDocuments.LoadOrStore(version, &openAPIDocument{})
	d := known.(*openAPIDocument)
	d.once.Do(func() {
		// Only the descriptions of the routes are used. No handler is called, so the handlers need no dependencies.
		s := server{Config: Config{Version: version}, control: accesscontrol.New(accesscontrol.Config{})}

		d.load(&s)
	})

	return d, d.err
}

// load generates the document.
func (d *openAPIDocument) load(s *server) {
	asJSON, asYAML, err := s.describeAPI()
	if d.err = err; err != nil {
		return
	}

	d.tag = fmt.Sprintf(`"%x"`, sha256.Sum256(asJSON))
	d.text, d.packed = map[string][]byte{"json": asJSON, "yaml": asYAML}, map[string][]byte{}
	for format, text := range d.text {
		var b bytes.Buffer
		z, _ := gzip.NewWriterLevel(&b, gzip.BestCompression) // an error is only that of an unknown level
		_, _ = z.Write(text)                                  // a buffer accepts all
		_ = z.Close()
		d.packed[format] = b.Bytes()
	}
}

// Document returns the OpenAPI document as JSON, as a node of this version serves it at /openapi.json.
func Document(version string) ([]byte, error) {
	d, err := openAPIOf(version)
	if err != nil {
		return nil, err
	}

	return d.text["json"], nil
}

// describeAPI generates the OpenAPI document from the routes.
func (s *server) describeAPI() (asJSON, asYAML []byte, err error) {
	d := newDocument(s.Version)
	for _, rt := range s.documentedRoutes() {
		d.addRoute(rt)
	}
	return d.encode()
}
