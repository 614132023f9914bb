package main

import (
	"bytes"
	"os"
	"testing"
)

func TestCodec_IsThatOfTheStructs(t *testing.T) {
	structs, err := readPackages("../..")
	if err != nil {
		t.Fatal(err)
	}

	want, err := structs.generateCodec()
	if err != nil {
		t.Fatal(err)
	}

	got, err := os.ReadFile("../../pkg/store/record/codec_generated.go")
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("the codec of records is not that of their structs (%v): run go generate ./pkg/store/record", err)
	}
}
