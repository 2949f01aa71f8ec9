import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { parse, parseAllDocuments } from 'yaml';
import { silentLogger, systemClock } from '../../src/base/index.ts';
import { hostingPod, type HostingPodRequest } from '../../src/exposer/hosting-pod.ts';
import { DATA_UPLOADS, type NewObject, type Pod } from '../../src/kube/index.ts';

const ROOT = new URL('../../manifests/', import.meta.url).pathname;

interface Constraints {
  readonly kind: string;
  readonly allowHostDirVolumePlugin: boolean;
  readonly allowPrivilegedContainer: boolean;
  readonly allowPrivilegeEscalation: boolean;
  readonly allowedCapabilities: readonly string[];
  readonly requiredDropCapabilities: readonly string[];
  readonly seccompProfiles: readonly string[];
  readonly volumes: readonly string[];
}
interface SecurityContext {
  readonly privileged?: boolean;
  readonly allowPrivilegeEscalation?: boolean;
  readonly capabilities: { readonly add: readonly string[]; readonly drop: readonly string[] };
}
interface DaemonSetText {
  readonly spec: { readonly template: { readonly spec: { readonly volumes: readonly object[] } } };
}

const constraintsOf = (folder: string): Constraints => {
  const documents = parseAllDocuments(readFileSync(join(ROOT, folder, 'scc.yaml'), 'utf8'));
  const found = documents
    .map((document) => document.toJS() as Constraints)
    .find(({ kind }) => kind === 'SecurityContextConstraints');
  if (!found) throw new Error(`${folder} has no constraints`);
  return found;
};
const PLAIN = constraintsOf('openshift');
const OF_PODS = constraintsOf('openshift-file-system-backup');

/** What OpenShift's admission would say against a pod, as far as our pods differ. */
function refusals(constraints: Constraints, { spec }: NewObject<Pod>): string[] {
  const kinds = (spec.volumes ?? []).map((volume) =>
    Object.keys(volume).find((key) => key !== 'name'),
  );
  const { privileged, allowPrivilegeEscalation, capabilities } = spec.containers[0]
    ?.securityContext as SecurityContext;
  const { seccompProfile } = spec.securityContext as { seccompProfile: { type: string } };
  const said: [boolean, string][] = [
    ...kinds.map((kind = ''): [boolean, string] => [
      !constraints.volumes.includes(kind),
      `volume ${kind}`,
    ]),
    [kinds.includes('hostPath') && !constraints.allowHostDirVolumePlugin, 'directory of the node'],
    [privileged === true && !constraints.allowPrivilegedContainer, 'privileged'],
    [allowPrivilegeEscalation === true && !constraints.allowPrivilegeEscalation, 'escalation'],
    ...capabilities.add.map((name): [boolean, string] => [
      !constraints.allowedCapabilities.includes(name),
      name,
    ]),
    ...constraints.requiredDropCapabilities.map((name): [boolean, string] => [
      !capabilities.drop.includes(name),
      `not dropped: ${name}`,
    ]),
    [
      seccompProfile.type !== 'RuntimeDefault' ||
        !constraints.seccompProfiles.includes('runtime/default'),
      'seccomp',
    ],
  ];
  return said.flatMap(([isRefused, why]) => (isRefused ? [why] : []));
}

function made(kind: HostingPodRequest['kind'], privilegedFsBackup = true): NewObject<Pod> {
  const isOfPod = kind.startsWith('pod-volume');
  const owner = { apiVersion: 'velero.io/v1', kind: 'X', metadata: { name: 'x', uid: 'u' } };
  return hostingPod(
    {
      kind,
      owner: owner as never,
      resource: DATA_UPLOADS,
      storageLocation: 'default',
      volume: isOfPod
        ? { hostPath: '/var/lib/kubelet/pods/x', node: 'n', readOnly: true }
        : { claim: 'x' },
      isBlock: false,
      operationTimeout: '10m0s',
      volumeBytes: 0,
      cacheClaim: 'x-cache',
    },
    { container: { name: 'a' }, spec: { containers: [] }, labels: {}, annotations: {} },
    {
      client: undefined as never,
      clock: systemClock,
      logger: silentLogger,
      namespace: 'velero',
      daemonSet: 'node-agent',
      prepareTimeoutMs: 1000,
      config: {
        loadAffinity: [],
        backupPvc: {},
        ignoreDelayBinding: false,
        podResources: {},
        privilegedFsBackup,
      },
    },
  );
}

describe('constraints for OpenShift', () => {
  it.each(['data-upload', 'data-download'] as const)('admit data movers of a %s', (kind) => {
    expect(refusals(PLAIN, made(kind))).toEqual([]);
  });

  it.each(['pod-volume-backup', 'pod-volume-restore'] as const)(
    'admit those of a %s with the component for file-system backup, and not without it',
    (kind) => {
      const pod = made(kind);
      expect(refusals(PLAIN, pod)).toEqual(
        expect.arrayContaining(['volume hostPath', 'directory of the node', 'privileged']),
      );
      expect(refusals(OF_PODS, pod)).toEqual([]);
    },
  );

  it('of file-system backup are otherwise those of data movers', () => {
    const more = {
      allowHostDirVolumePlugin: true,
      allowPrivilegedContainer: true,
      allowPrivilegeEscalation: true,
      volumes: [...PLAIN.volumes, 'hostPath'].sort(),
      metadata: { name: 'longshore-pod-volumes' },
    };
    expect({ ...OF_PODS, volumes: OF_PODS.volumes.toSorted() }).toEqual({ ...PLAIN, ...more });
  });

  it('admit a pod that is not privileged too, where SELinux lets it read', () => {
    const pod = made('pod-volume-backup', false);
    expect(refusals(PLAIN, pod)).not.toContain('privileged');
    expect(refusals(OF_PODS, pod)).toEqual([]);
  });

  it('agents ask for no directory of the node: `nonroot-v2` has none', () => {
    const daemonSet = parse(
      readFileSync(join(ROOT, 'base/daemonset.yaml'), 'utf8'),
    ) as DaemonSetText;
    expect(JSON.stringify(daemonSet.spec.template.spec.volumes)).not.toContain('hostPath');
    const overlay = readFileSync(join(ROOT, 'instead-of-velero/kustomization.yaml'), 'utf8');
    expect(overlay).not.toMatch(/hostPath:/);
    expect(overlay).toContain('/spec/template/metadata/annotations/longshore.io~1host-pods');
    const chart = readFileSync(join(ROOT, 'helm/longshore/templates/daemonset.yaml'), 'utf8');
    expect(chart).not.toMatch(/hostPath:/);
  });
});
