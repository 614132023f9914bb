// Package docs contains the manual, so that nodes can serve it. The pages for contributors, in internals, are not part of it.
package docs

import "embed"

// Files are the pages, as Markdown, and their images.
//
//go:embed *.md how-to/*.md images
var Files embed.FS
