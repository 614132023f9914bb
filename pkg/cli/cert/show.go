package cert

import (
	"cmp"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/internal/certs"
	"github.com/carillonhq/carillon/pkg/task"
)

// certificate is the JSON form of a certificate.
type certificate struct {
	File        string     `json:"file"`
	Kind        certs.Kind `json:"kind"` // ca, node, client, or empty
	Subject     string     `json:"subject"`
	Issuer      string     `json:"issuer"`
	Names       []string   `json:"names"`
	NotBefore   task.Time  `json:"not_before"`
	NotAfter    task.Time  `json:"not_after"`
	Serial      string     `json:"serial"`
	Fingerprint string     `json:"fingerprint"` // SHA-256
}

// certificateOf returns the JSON form of a certificate.
func certificateOf(file string, c *x509.Certificate) certificate {
	sum := sha256.Sum256(c.Raw)
	names := certs.Names(c)
	if names == nil {
		names = []string{}
	}

	return certificate{
		File: file, Kind: certs.KindOf(c), Subject: c.Subject.String(), Issuer: c.Issuer.String(), Names: names,
		NotBefore: task.At(c.NotBefore), NotAfter: task.At(c.NotAfter), Serial: c.SerialNumber.Text(16), Fingerprint: hex.EncodeToString(sum[:]),
	}
}

// readCertificates reads the certificates in a file.
func readCertificates(path string) ([]*x509.Certificate, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, failure.NotFound("file %s does not exist", path)
	}
	if err != nil {
		return nil, err
	}

	list, err := certs.Parse(b)
	if err != nil {
		return nil, &failure.Error{Exit: failure.ExitFailure, Problem: failure.Problem{Code: "bad_value", Message: path + ": " + err.Error()}}
	}

	return list, nil
}

// showCommand returns "carillon cert show".
func showCommand(f *factory.Factory) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "show FILE...",
		Short:   "Show names, issuer and expiry of certificates",
		Example: "  carillon cert show certs/*.pem\n  carillon cert show /etc/carillon/node.pem -o json | jq '.[].not_after'",
		Args:    factory.Args(1, -1, "the file"),
	}
	cmd.RunE = func(_ *cobra.Command, files []string) error {
		var list []certificate
		for _, path := range files {
			if strings.HasSuffix(path, "-key.pem") && len(files) > 1 {
				continue // certs/*.pem also matches the keys
			}

			of, err := readCertificates(path)
			if err != nil {
				return err
			}

			for _, c := range of {
				list = append(list, certificateOf(path, c))
			}
		}

		return output.EmitList(&f.Printer, list, func(c certificate) string { return c.Subject }, func(wide bool) *output.Table { return certGrid(f, list, wide) })
	}

	return cmd
}

// certGrid returns the table of certificates.
func certGrid(f *factory.Factory, list []certificate, wide bool) *output.Table {
	g := &output.Table{Headers: []string{"FILE", "KIND", "NAME", "FOR", "EXPIRES", "LEFT", "ISSUER"}}
	if wide {
		g.Headers = append(g.Headers, "SHA-256")
	}

	for _, c := range list {
		left := f.TimeLeft(c.NotAfter)

		switch d := c.NotAfter.Sub(f.Now()); {
		case d <= 0:
			left = f.Paint(output.Red, "ended")
		case d < 30*24*time.Hour:
			left = f.Paint(output.Yellow, left)
		}

		row := []string{
			output.OneLine(c.File), cmp.Or(string(c.Kind), f.NoValue()), output.OneLine(strings.TrimPrefix(c.Subject, "CN=")), output.OneLine(cmp.Or(strings.Join(c.Names, ","), f.NoValue())),
			c.NotAfter.UTC().Format(time.DateOnly), left, output.OneLine(strings.TrimPrefix(c.Issuer, "CN=")),
		}
		if wide {
			row = append(row, c.Fingerprint)
		}

		g.AddRow(row...)
	}

	return g
}
