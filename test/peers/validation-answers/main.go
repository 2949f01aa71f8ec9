// validation-answers says what Velero's own server finds wrong with Restores, and how it completes them. It reads lines of JSON from stdin,
// each a Restore and the objects of a cluster; each gets one line of JSON.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"os"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	crclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	v1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	"github.com/vmware-tanzu/velero/pkg/controller"
	"github.com/vmware-tanzu/velero/pkg/metrics"
	"github.com/vmware-tanzu/velero/pkg/plugin/clientmgmt"
	"github.com/vmware-tanzu/velero/pkg/util/logging"
)

type question struct {
	Restore map[string]any
	Objects []map[string]any
}

type answer struct {
	Phase  string         `json:"phase"`
	Errors []string       `json:"errors,omitempty"`
	Spec   map[string]any `json:"spec"`
}

func main() {
	log := logrus.New()
	log.SetOutput(io.Discard)
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	for {
		text, err := lines.ReadBytes('\n')
		if err == io.EOF && len(text) == 0 {
			return
		}
		var q question
		must(json.Unmarshal(text, &q))
		bytes, err := json.Marshal(ask(q, log))
		must(err)
		out.Write(append(bytes, '\n'))
	}
}

// What the run of a valid Restore ends with: nothing more is asked.
const isValid = "the Restore is valid"

func ask(q question, log *logrus.Logger) answer {
	scheme := runtime.NewScheme()
	must(corev1.AddToScheme(scheme))
	must(v1.AddToScheme(scheme))
	builder := fake.NewClientBuilder().WithScheme(scheme)
	for _, object := range append(q.Objects, q.Restore) {
		builder.WithObjects(&unstructured.Unstructured{Object: object})
	}
	cluster := builder.Build()
	validate(cluster, log)
	var restore v1.Restore
	must(cluster.Get(context.Background(), name, &restore))
	spec, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&restore.Spec)
	must(err)
	return answer{string(restore.Status.Phase), restore.Status.ValidationErrors, spec}
}

var name = crclient.ObjectKey{Namespace: "velero", Name: "r"}

func validate(cluster crclient.Client, log *logrus.Logger) {
	defer func() {
		if cause := recover(); cause != nil && cause != isValid {
			panic(cause)
		}
	}()
	reconciler := controller.NewRestoreReconciler(
		context.Background(), name.Namespace, nil, cluster, log, logrus.InfoLevel,
		func(logrus.FieldLogger) clientmgmt.Manager { panic(isValid) },
		nil, metrics.NewServerMetrics(), logging.FormatText, 4*time.Hour, false, cluster, time.Minute,
	)
	_, err := reconciler.Reconcile(context.Background(), ctrl.Request{NamespacedName: name})
	must(err)
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
