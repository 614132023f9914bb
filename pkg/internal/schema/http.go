package schema

import (
	"github.com/danielgtaylor/huma/v2"

	"github.com/carillonhq/carillon/pkg/task"
)

// secretRefPattern matches NAME/KEY of a secret.
const secretRefPattern = "^[a-z0-9]([a-z0-9._-]*[a-z0-9])?/[A-Za-z_][A-Za-z0-9_]*$"

// refineHTTP adds the descriptions and the allowed values of an HTTP action and its parts.
func refineHTTP(all map[string]*huma.Schema) {
	h := all["HTTP"]
	h.Description = "Sends one request. An attempt writes it at most once."

	f := h.Properties
	f["method"].Enum = enumOf(task.HTTPMethods()...)
	f["url"].Pattern = "^([hH][tT][tT][pP][sS]?://[^/?#@\\s]|secret:)"
	f["url"].Examples = []any{"https://api.example.com/orders/${run.scheduled_time}", "secret:slack/url"}
	f["headers"].Examples = []any{map[string]string{"X-Key": "${secret:api/key}"}}
	f["json"].Examples = []any{map[string]string{"day": "${run.scheduled_time}"}}
	f["unsent_for"].Pattern, f["unsent_for"].Default = durationPattern, task.DefaultUnsentFor.String()
	Within(f["redirects"], 0, task.MaxRedirects, 0)
	f["output"].Enum = enumOf(task.HTTPOutputKeep)
	f["results"].AdditionalProperties = &huma.Schema{Type: huma.TypeString, Pattern: "^(/|$)"}
	f["results"].Examples = []any{map[string]string{"id": "/order/id"}}

	headers, results, one := task.MaxHeaders, task.MaxResults, 1
	f["headers"].MaxProperties, f["form"].MaxProperties, f["results"].MaxProperties = &headers, &headers, &results
	f["form"].MinProperties = &one
	f["limit"].Description = "What a request may use."

	refineHTTPAuth(all["HTTPAuth"], all["HTTPTLS"])

	expect, longest := all["HTTPExpect"].Properties, task.MaxPattern
	expect["status"].Items = &huma.Schema{Type: huma.TypeString, Pattern: "^[2-5]([0-9][0-9]|xx)$"}
	expect["status"].MaxItems, expect["status"].UniqueItems = &headers, true
	expect["body"].MaxLength = &longest

	Within(all["HTTPLimit"].Properties["per_target"], 1, task.MaxPerTarget, task.DefaultPerTarget)
	all["HTTPLimit"].Properties["body"].Default = task.DefaultHTTPBody.String()
}

// refineHTTPAuth adds the allowed values of credentials and certificates.
func refineHTTPAuth(auth, tls *huma.Schema) {
	auth.OneOf = []*huma.Schema{{Required: []string{"bearer"}}, {Required: []string{"basic"}}, {Required: []string{"signature"}}}
	for _, p := range auth.Properties {
		p.Pattern, p.Examples = secretRefPattern, []any{"api/key"}
	}

	one := 1
	tls.MinProperties = &one
	for _, p := range tls.Properties {
		p.Pattern, p.Examples = "^secret:"+secretRefPattern[1:], []any{"secret:api/ca"}
	}
}
