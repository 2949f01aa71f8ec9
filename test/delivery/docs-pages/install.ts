import { expect } from 'vitest';
import type { DocumentedCluster } from '../../support/docs/documented-cluster.ts';
import type { PageScript } from '../../support/docs/follow-page.ts';
import { installLongshore, uninstallLongshore } from './prepared.ts';

const COPY = 'kubectl -n velero get secret velero-repo-credentials -o yaml > copy.yaml';

export function installPage(cluster: DocumentedCluster): PageScript {
  const areReady = async (): Promise<void> => {
    await cluster.sh(`kubectl -n velero rollout status deployment/longshore-server --timeout=300s
      kubectl -n velero rollout status daemonset/node-agent --timeout=300s`);
  };
  return {
    page: 'docs/install.md',
    steps: {
      'longshore backup create first': {
        after: ({ out }) => expect(out).toContain('first has ended: Completed'),
      },
      'longshore backup describe first': {
        after: ({ out }) => expect(out).toContain('shop/data'),
      },
      'kubectl apply -f crds/': {
        before: async () => {
          await uninstallLongshore(cluster);
          await cluster.sh(`${COPY}\nkubectl delete namespace velero`);
        },
      },
      'kubectl apply -k manifests/whole': { after: areReady },
      'helm install': {
        // Objects that were applied by hand are deleted by hand.
        before: () =>
          cluster.sh('kubectl delete -k manifests/whole && kubectl delete namespace velero'),
        after: areReady,
      },
      'longshore uninstall': {
        before: async () => {
          await cluster.sh(`helm -n velero uninstall longshore
            kubectl delete namespace velero
            kubectl delete -f crds/ -f crds/server/
            kubectl create namespace velero
            kubectl apply -f copy.yaml`);
          await installLongshore(cluster);
        },
        answer: ['[y/N]', 'y\n'],
        after: async () => {
          expect(await cluster.sh('kubectl get crd -o name')).not.toContain('velero');
          expect(await cluster.sh('kubectl -n velero get pods -o name')).toBe('');
        },
      },
      'kubectl apply -f longshore-secrets.yaml': {
        // With the password of the repositories, and as another user would find it.
        after: () => installLongshore(cluster),
      },
    },
  };
}
