import * as fs from 'node:fs';
import { join } from 'node:path';
import { expect } from 'vitest';
import type { DocumentedCluster } from '../../support/docs/documented-cluster.ts';
import { type PageScript, readPage } from '../../support/docs/follow-page.ts';

const DEFINITION = {
  apiVersion: 'apiextensions.k8s.io/v1',
  kind: 'CustomResourceDefinition',
  metadata: { name: 'prometheusrules.monitoring.coreos.com' },
  spec: {
    group: 'monitoring.coreos.com',
    scope: 'Namespaced',
    names: { kind: 'PrometheusRule', plural: 'prometheusrules', singular: 'prometheusrule' },
    versions: [
      {
        name: 'v1',
        served: true,
        storage: true,
        schema: {
          openAPIV3Schema: { type: 'object', 'x-kubernetes-preserve-unknown-fields': true },
        },
      },
    ],
  },
};

export function alertsPage(cluster: DocumentedCluster): PageScript {
  return {
    page: 'docs/alerts.md',
    steps: {
      // The operator of Prometheus is not ours.
      'kubectl apply': {
        before: async () => {
          await cluster.apply(DEFINITION);
          await cluster.sh('kubectl wait --for=condition=Established crd --all --timeout=300s');
        },
        after: ({ out }) => expect(out.match(/created/g)).toHaveLength(3),
      },
    },
  };
}

export function statusPagePage({ pagePort }: DocumentedCluster): PageScript {
  const title = '<title>';
  const forward = 'port-forward deployment/longshore-server ';
  return {
    page: 'docs/status-page.md',
    replace: { [`${forward}8086`]: `${forward}${pagePort}` },
    steps: {
      'kubectl -n velero port-forward': {
        until: 'Forwarding from',
        meanwhile: async () => {
          const ask = async (): Promise<string> =>
            (await fetch(`http://127.0.0.1:${pagePort}/`)).text();
          await expect.poll(() => ask().catch(String), { timeout: 60_000 }).toContain(title);
        },
      },
      'curl -H': { after: ({ out }) => expect(out).toContain(title) },
    },
  };
}

/** The first document of the page, which its commands are about. */
export function writePolicy({ directory }: DocumentedCluster): void {
  const [, policy = ''] = /```yaml\n(.*?)```/s.exec(readPage('docs/volume-policies.md')) ?? [];
  fs.writeFileSync(join(directory, 'policy.yaml'), policy);
}

export function policiesPage(cluster: DocumentedCluster): PageScript {
  return {
    page: 'docs/volume-policies.md',
    steps: {
      'longshore policy-check -f policy.yaml   ': {
        before: async () => {
          writePolicy(cluster);
          await cluster.sh(`kubectl apply -f docs/examples/volume-policies.yaml
            longshore backup create nightly --include-namespaces shop --resource-policies-configmap volume-policies --wait`);
        },
        after: ({ out }) => expect(out).toMatch(/^shop +data +/m),
      },
      'longshore policy-check --backup nightly': {
        after: ({ out }) => expect(out).toMatch(/^shop +data +/m),
      },
    },
  };
}

export function objectLockPage(cluster: DocumentedCluster): PageScript {
  const { key, secret } = cluster.credentials;
  return {
    page: 'docs/object-lock.md',
    replace: {
      'AWS_ACCESS_KEY_ID=...': `AWS_ACCESS_KEY_ID=${key}`,
      'AWS_SECRET_ACCESS_KEY=...': `AWS_SECRET_ACCESS_KEY=${secret}`,
    },
    steps: {
      'kubectl -n velero annotate': {
        after: () =>
          cluster.sh(
            `kubectl -n velero wait bsl/default --for=jsonpath='{.status.phase}'=Available --timeout=300s`,
          ),
      },
      'kopia maintenance set': {
        after: async () =>
          expect(
            await cluster.sh(`KOPIA_PASSWORD=$(kubectl -n velero get secret velero-repo-credentials \
              -o jsonpath='{.data.repository-password}' | base64 -d) kopia repository status`),
          ).toMatch(/Object Lock Extension: +(?:true|enabled)|retention/i),
      },
      'longshore repository verify-all': {
        after: ({ out }) => expect(out).toContain('shop'),
      },
    },
  };
}
