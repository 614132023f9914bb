// Command records generates the codec of the numerous records in etcd from their structs. It reads the source of packages,
// so it also works while the former codec does not compile. Run it with go generate ./pkg/store/record.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	root := flag.String("root", ".", "the `directory` of the repository")
	codec := flag.String("codec", "", "write the codec to this `file`")
	flag.Parse()

	if err := run(*root, *codec); err != nil {
		fmt.Fprintln(os.Stderr, "records:", err)
		os.Exit(1)
	}
}

func run(root, codec string) error {
	structs, err := readPackages(root)
	if err != nil {
		return err
	}

	text, err := structs.generateCodec()
	if err != nil {
		return err
	}

	return os.WriteFile(codec, text, 0o644)
}
