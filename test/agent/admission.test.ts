import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type ExposeConfig, type ExposerOptions } from '../../src/exposer/index.ts';
import {
  type HostedKind,
  hostingPod,
  type HostingPodRequest,
  loadTemplate,
  type Template,
} from '../../src/exposer/hosting-pod.ts';
import {
  DAEMON_SETS,
  DATA_DOWNLOADS,
  DATA_UPLOADS,
  type KubeClient,
  type KubeObject,
  type NewObject,
  type Pod,
  PODS,
  POD_VOLUME_BACKUPS,
  POD_VOLUME_RESTORES,
  type Resource,
  SERVICE_ACCOUNTS,
} from '../../src/kube/index.ts';
import { AGENT, HOST_PODS, MOVER, PolicedCluster } from '../support/policed-cluster.ts';
import { hasRealApi } from '../support/real-api.ts';

const UID = '01234567-89ab-cdef-0123-456789abcdef';

const RESOURCES: Readonly<Record<HostedKind, Resource<KubeObject>>> = {
  'data-upload': DATA_UPLOADS,
  'data-download': DATA_DOWNLOADS,
  'pod-volume-backup': POD_VOLUME_BACKUPS,
  'pod-volume-restore': POD_VOLUME_RESTORES,
};
const ofVolume = (kind: string, volume: string) => `${HOST_PODS}/${UID}/volumes/kubernetes.io~${kind}/${volume}`; // prettier-ignore

/** Pods that the code makes, each by what differs. */
const MADE: Readonly<Record<string, [HostedKind, Partial<HostingPodRequest>, ExposeConfig?]>> = {
  'a backup of a snapshot': ['data-upload', {}],
  'a backup of a block volume': ['data-upload', { isBlock: true }],
  'a backup of a snapshot that is only read, without SELinux labels': [
    'data-upload',
    { volume: { claim: 'x', readOnly: true }, spcNoRelabeling: true },
  ],
  'a backup with rules for paths, of a known time, on a node': [
    'data-upload',
    {
      selectedNode: 'node-1',
      frozenAt: '2026-01-01T00:00:00Z',
      excludedBy: { storageClass: 'a', annotations: '*.log' },
    },
  ],
  'a backup by a data mover of another name': ['data-upload', { dataMover: 'longshore' }],
  'a restore with a cache': ['data-download', { cacheClaim: 'x-cache' }],
  'a restore of a block volume': ['data-download', { isBlock: true }],
  'a restore in place': ['data-download', { isInPlace: true, volume: { claim: 'x-in-place' } }],
  'a rehearsal of a restore in place': [
    'data-download',
    { isInPlace: true, volume: { claim: 'x-in-place', readOnly: true } },
  ],
  'a backup of the volume of a pod': [
    'pod-volume-backup',
    { volume: { hostPath: `${ofVolume('csi', 'pvc-1')}/mount`, node: 'node-1', readOnly: true } },
  ],
  'a restore into the volume of a pod, with a cache': [
    'pod-volume-restore',
    {
      volume: { hostPath: ofVolume('empty-dir', 'v'), node: 'node-1', readOnly: false },
      cacheClaim: 'x-cache',
    },
  ],
  'a backup with labels, annotations and resources of the settings': [
    'data-upload',
    {},
    {
      loadAffinity: [],
      backupPvc: {},
      ignoreDelayBinding: false,
      podResources: { requests: { cpu: '1' }, limits: { memory: '1Gi' } },
      podLabels: { team: 'a', name: 'nightly', role: 'backup' },
      podAnnotations: { note: 'b' },
    },
  ],
};
const CONFIG: ExposeConfig = {
  loadAffinity: [],
  backupPvc: {},
  ignoreDelayBinding: false,
  podResources: {},
};

interface Policy {
  readonly metadata: { readonly name: string; readonly generation: number };
  readonly status?: { readonly observedGeneration?: number; readonly typeChecking?: object };
}

type Change = (pod: Draft) => void;
/** As much of a pod as is changed here. */
interface Draft {
  metadata: Record<string, Record<string, string>> & { name: string; namespace: string };
  spec: {
    containers: [Record<string, unknown> & { args: string[]; env: object[] }];
    volumes: Record<string, unknown>[];
    [field: string]: unknown;
  };
}
const container = (pod: Draft) => pod.spec.containers[0];
const mounted =
  (path: string): Change =>
  (pod) => {
    pod.spec.volumes[0] = { name: UID, hostPath: { path, type: 'Directory' } };
  };
const withVolume =
  (volume: object, mountPath: string): Change =>
  (pod) => {
    pod.spec.volumes.push({ name: 'more', ...volume });
    (container(pod).volumeMounts as object[]).push({ name: 'more', mountPath });
  };
const security =
  (field: string, value: unknown): Change =>
  (pod) => {
    (container(pod).securityContext as Record<string, unknown>)[field] = value;
  };
const variable =
  (more: object): Change =>
  (pod) =>
    container(pod).env.push(more);
const ofPod =
  (field: string, value: unknown): Change =>
  (pod) => {
    pod.spec[field] = value;
  };
const ofContainer =
  (field: string, value: unknown): Change =>
  (pod) => {
    container(pod)[field] = value;
  };

/** Goals of a thief of the agent's token, and the words of the refusal. */
const ATTACKS: Readonly<Record<string, [HostedKind, Change, RegExp]>> = {
  'the account of the server': ['data-upload', ofPod('serviceAccountName', 'longshore-server'), /ServiceAccount of data movers/],
  "the agent's own account": ['data-upload', ofPod('serviceAccountName', AGENT), /ServiceAccount of data movers/],
  'another image': ['data-upload', ofContainer('image', 'evil'), /the image of its DaemonSet/],
  'another command': ['data-upload', ofContainer('command', ['/bin/sh', '-c']), /the command of a data mover/],
  'the command of the server': ['data-upload', ofContainer('command', ['/velero', 'server', 'backup']), /the command of a data mover/],
  'a restore with the capabilities of a backup': ['data-upload', ofContainer('command', ['/velero', 'data-mover', 'restore']), /the command of a data mover/],
  'an argument of its own': ['data-upload', (pod) => container(pod).args.push('--kubeconfig=/x'), /is told its own volume/],
  'the order of another upload': ['data-upload', (pod) => container(pod).args.push('--data-upload=other'), /is told its own volume/],
  'another path as the volume': ['data-upload', (pod) => (container(pod).args[0] = '--volume-path=/'), /is told its own volume/],
  'a second container': ['data-upload', (pod) => (pod.spec.containers as object[]).push({ name: 'b', image: 'evil' }), /no other one/],
  'an init container': ['data-upload', ofPod('initContainers', [{ name: 'b', image: 'evil' }]), /no other one/],
  'a hook': ['data-upload', ofContainer('lifecycle', { preStop: { exec: { command: ['sh'] } } }), /no hooks/],
  'a probe': ['data-upload', ofContainer('livenessProbe', { exec: { command: ['sh'] } }), /no probes/],
  'a port of the node': ['data-upload', ofContainer('ports', [{ containerPort: 1, hostPort: 1 }]), /no ports/],
  'the environment of a Secret': ['data-upload', ofContainer('envFrom', [{ secretRef: { name: 's' } }]), /no other environment/],
  'code in a variable': ['data-upload', variable({ name: 'NODE_OPTIONS', value: '--import=data:text/javascript,0' }), /variables of its DaemonSet/],
  'a library in a variable': ['data-upload', variable({ name: 'LD_PRELOAD', value: '/x' }), /variables of its DaemonSet/],
  'a Secret in a variable': ['data-upload', variable({ name: 'LONGSHORE_X', valueFrom: { secretKeyRef: { name: 's', key: 'k' } } }), /variables of its DaemonSet/],
  'a place that gets the token of the data mover': ['data-upload', variable({ name: 'AWS_CONTAINER_CREDENTIALS_FULL_URI', value: 'https://evil.test/' }), /variables of its DaemonSet/],
  'the same, behind a name like that of a cloud': ['data-upload', variable({ name: 'AWS_CONTAINER_CREDENTIALS_FULL_URI', value: 'http://169.254.170.23.evil.test/v1/credentials' }), /variables of its DaemonSet/],
  'the token of the API server as that of an identity': ['data-upload', variable({ name: 'AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE', value: '/var/run/secrets/kubernetes.io/serviceaccount/token' }), /variables of its DaemonSet/],
  'the same, by a way up': ['data-upload', variable({ name: 'AZURE_FEDERATED_TOKEN_FILE', value: '/var/run/secrets/azure/../kubernetes.io/serviceaccount/token' }), /variables of its DaemonSet/],
  'another authority': ['data-upload', variable({ name: 'AZURE_AUTHORITY_HOST', value: 'https://evil.test/' }), /variables of its DaemonSet/],
  'a region that is a host': ['data-upload', variable({ name: 'AWS_REGION', value: 'x@evil.test/#' }), /variables of its DaemonSet/],
  'a variable in a variable': ['data-upload', variable({ name: 'LONGSHORE_UPLOAD_LIMIT', value: '$(AWS_SECRET_ACCESS_KEY)' }), /variables of its DaemonSet/],
  'a variable in an argument': ['data-upload', (pod) => container(pod).args.push('--resource-timeout=$(AWS_SECRET_ACCESS_KEY)'), /is told its own volume/],
  'the root of the node': ['data-upload', withVolume({ hostPath: { path: '/' } }, '/host'), /no directory of the node/],
  'the root of the node in place of the volume': ['data-upload', mounted('/'), /no directory of the node/],
  'the root of the node by file-system backup': ['pod-volume-backup', mounted('/'), /one directory of the node/],
  'all pods of the node': ['pod-volume-backup', mounted(HOST_PODS), /one directory of the node/],
  'all volumes of a pod': ['pod-volume-backup', mounted(`${HOST_PODS}/${UID}/volumes`), /one directory of the node/],
  'the token of another pod': ['pod-volume-backup', mounted(ofVolume('projected', 'kube-api-access-abcde')), /one directory of the node/],
  'the Secret of another pod': ['pod-volume-backup', mounted(ofVolume('secret', 's')), /one directory of the node/],
  'what a tenant may have linked to, below a volume': ['pod-volume-backup', mounted(`${ofVolume('empty-dir', 'v')}/mount`), /one directory of the node/],
  'the same below a volume of a driver': ['pod-volume-backup', mounted(`${ofVolume('csi', 'v')}/mount/link`), /one directory of the node/],
  'a directory that is made': [
    'pod-volume-backup',
    (pod) => (pod.spec.volumes[0] = { name: UID, hostPath: { path: ofVolume('nfs', 'v'), type: 'DirectoryOrCreate' } }),
    /one directory of the node/,
  ],
  'the volume of a pod, to be written by a backup': [
    'pod-volume-backup',
    (pod) => ((container(pod).volumeMounts as { readOnly?: boolean }[])[0] ?? {}).readOnly = false,
    /to read only/,
  ],
  'a Secret': ['data-upload', withVolume({ secret: { secretName: 's' } }, '/s'), /no other Secret/],
  'a projected Secret': ['data-upload', withVolume({ projected: { sources: [{ secret: { name: 's' } }] } }, '/var/run/secrets/s'), /no other Secret/],
  'the claim of somebody else': ['data-upload', withVolume({ persistentVolumeClaim: { claimName: 'minio' } }, '/m'), /its own claims/],
  'an inline volume of a driver': ['data-upload', withVolume({ csi: { driver: 'secrets-store.csi.k8s.io' } }, '/m'), /its own claims/],
  'a file share': ['data-upload', withVolume({ nfs: { server: 's', path: '/' } }, '/m'), /its own claims/],
  'the own claim under the name of a shared volume': [
    'data-upload',
    (pod) => (pod.spec.volumes = pod.spec.volumes.map((volume) => volume.name === 'cloud-credentials' ? { name: 'cloud-credentials', persistentVolumeClaim: { claimName: 'x' } } : volume)),
    /its own claims/,
  ],
  'its volume in the place of the program': [
    'data-upload',
    (pod) => (container(pod).volumeMounts as object[]).push({ name: UID, mountPath: '/velero' }),
    /mounts its volume at the path/,
  ],
  'a ConfigMap in the place of the program, as if it were scratch': [
    'data-upload',
    (pod) => {
      pod.spec.volumes.push({ name: 'longshore-scratch-9', projected: { sources: [{ configMap: { name: 'x-info' } }] } });
      (container(pod).volumeMounts as object[]).push({ name: 'longshore-scratch-9', mountPath: '/app' });
    },
    /mounts its volume at the path/,
  ],
  'a ConfigMap in the place of the program, by a way up': [
    'data-upload',
    withVolume({ projected: { sources: [{ configMap: { name: 'x-info' } }] } }, '/var/run/secrets/../../../app'),
    /mounts its volume at the path/,
  ],
  'a ConfigMap in the place of the credentials': [
    'data-upload',
    (pod) => (pod.spec.volumes = pod.spec.volumes.map((volume) => volume.name === 'cloud-credentials' ? { name: 'cloud-credentials', projected: { sources: [{ configMap: { name: 'x-info' } }] } } : volume)),
    /its own claims/,
  ],
  'a device elsewhere': [
    'data-upload',
    (pod) => {
      container(pod).volumeMounts = [];
      container(pod).volumeDevices = [{ name: UID, devicePath: '/dev/a' }];
    },
    /mounts its volume at the path/,
  ],
  "the node's network": ['data-upload', ofPod('hostNetwork', true), /no namespaces of its node/],
  "the node's processes": ['data-upload', ofPod('hostPID', true), /no namespaces of its node/],
  "the node's memory": ['data-upload', ofPod('hostIPC', true), /no namespaces of its node/],
  'other names of hosts': ['data-upload', ofPod('hostAliases', [{ ip: '1.1.1.1', hostnames: ['s3'] }]), /the DNS/],
  'another DNS server': ['data-upload', ofPod('dnsConfig', { nameservers: ['1.1.1.1'] }), /the DNS/],
  'no seccomp': ['data-upload', ofPod('securityContext', { runAsUser: 0 }), /runs confined/],
  'a sysctl': ['data-upload', ofPod('securityContext', { seccompProfile: { type: 'RuntimeDefault' }, sysctls: [{ name: 'kernel.shm_rmid_forced', value: '0' }] }), /runs confined/],
  'a volume to write without SELinux': ['data-upload', ofPod('securityContext', { seccompProfile: { type: 'RuntimeDefault' }, seLinuxOptions: { type: 'spc_t' } }), /runs confined/],
  'no AppArmor': ['data-upload', (pod) => (pod.metadata.annotations = { [`container.apparmor.security.beta.kubernetes.io/${UID}`]: 'unconfined' }), /runs confined/],
  'another capability': ['data-upload', security('capabilities', { drop: ['ALL'], add: ['SYS_ADMIN'] }), /capabilities/],
  'the capabilities of a restore': ['data-upload', security('capabilities', { drop: ['ALL'], add: ['DAC_OVERRIDE'] }), /capabilities/],
  'all capabilities of a container': ['data-upload', security('capabilities', {}), /capabilities/],
  'a container without seccomp': ['data-upload', security('seccompProfile', { type: 'Unconfined' }), /capabilities/],
  'all privileges': ['data-upload', (pod) => (container(pod).securityContext = { privileged: true, capabilities: { drop: ['ALL'] } }), /not privileged/],
  'all privileges for file-system backup': ['pod-volume-backup', (pod) => Object.assign(container(pod).securityContext as object, { privileged: true, allowPrivilegeEscalation: true }), /longshore.io\/privileged-fs-backup/],
  'an escalation': ['data-upload', security('allowPrivilegeEscalation', true), /not privileged/],
  'no owner': ['data-upload', (pod) => delete (pod.metadata as Partial<Draft['metadata']>).ownerReferences, /is told its own|owned by|volume/],
  'the labels of the server': ['data-upload', (pod) => (pod.metadata.labels = { ...pod.metadata.labels, name: 'longshore-server' }), /labels of data movers/],
  'the labels of an agent': ['data-upload', (pod) => (pod.metadata.labels = { ...pod.metadata.labels, role: AGENT }), /labels of data movers/],
  'no labels of a data mover': ['data-upload', (pod) => (pod.metadata.labels = {}), /labels of data movers/],
}; // prettier-ignore

/** The variables that webhooks of clouds add. */
const IDENTITIES: Readonly<Record<string, Readonly<Record<string, string>>>> = {
  IRSA: {
    AWS_STS_REGIONAL_ENDPOINTS: 'regional',
    AWS_DEFAULT_REGION: 'eu-west-1',
    AWS_REGION: 'eu-west-1',
    AWS_ROLE_ARN: 'arn:aws-us-gov:iam::123456789012:role/team/back.up+x=1,@y',
    AWS_WEB_IDENTITY_TOKEN_FILE: '/var/run/secrets/eks.amazonaws.com/serviceaccount/token',
  },
  'EKS Pod Identity': {
    AWS_CONTAINER_CREDENTIALS_FULL_URI: 'http://169.254.170.23/v1/credentials',
    AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE:
      '/var/run/secrets/pods.eks.amazonaws.com/serviceaccount/eks-pod-identity-token',
  },
  'EKS Pod Identity with IPv6': {
    AWS_CONTAINER_CREDENTIALS_FULL_URI: 'http://[fd00:ec2::23]/v1/credentials',
  },
  Azure: {
    AZURE_CLIENT_ID: '01234567-89ab-cdef-0123-456789abcdef',
    AZURE_TENANT_ID: '01234567-89ab-cdef-0123-456789abcdef',
    AZURE_FEDERATED_TOKEN_FILE: '/var/run/secrets/azure/tokens/azure-identity-token',
    AZURE_AUTHORITY_HOST: 'https://login.microsoftonline.com/',
  },
};

describe.skipIf(!hasRealApi())('the admission policies, on a real API server', () => {
  let cluster: PolicedCluster;
  let agent: KubeClient;
  let template: Template;
  const pods = '/api/v1/namespaces/velero/pods';
  const make = (pod: object, client = agent): Promise<string> =>
    cluster.answer(client, 'POST', pods, { apiVersion: 'v1', kind: 'Pod', ...pod });

  function podOf(
    kind: HostedKind,
    more: Partial<HostingPodRequest> = {},
    config: ExposeConfig = CONFIG,
  ): NewObject<Pod> {
    const isOfPod = kind.startsWith('pod-volume-');
    const owner = { metadata: { name: 'x', namespace: 'velero', uid: UID } } as KubeObject;
    const hostPath = { hostPath: ofVolume('empty-dir', 'v'), node: 'node-1', readOnly: true };
    const request: HostingPodRequest = {
      kind,
      owner,
      resource: RESOURCES[kind],
      storageLocation: 'default',
      volume: isOfPod ? hostPath : { claim: 'x' },
      isBlock: false,
      operationTimeout: '1m',
      volumeBytes: 0,
      ...more,
    };
    const moverEnvironment = { LONGSHORE_STALL_TIMEOUT: '1m' };
    const options = { namespace: 'velero', config, moverEnvironment };
    return hostingPod(request, template, options as unknown as ExposerOptions);
  }

  beforeAll(async () => {
    cluster = await PolicedCluster.start(31_000);
    agent = await cluster.clientOf(AGENT);
    template = await loadTemplate(cluster.api.client, 'velero', AGENT);
  }, 120_000);
  afterAll(async () => {
    await (cluster as PolicedCluster | undefined)?.[Symbol.asyncDispose]();
  });

  it('have no warnings of their own', async () => {
    // The controller-manager checks the types of a policy some time after the policy was made.
    const checks = async (): Promise<unknown[]> => {
      const json = await cluster.api.kubectl('get', 'validatingadmissionpolicies', '-o', 'json');
      const { items } = JSON.parse(json) as { items: Policy[] };
      return items.map(({ metadata: { name, generation }, status }) => [
        name,
        status?.observedGeneration === generation ? status?.typeChecking : 'not checked yet',
      ]);
    };
    const names = ['data-mover', 'node-agent-changes', 'node-agent-deletions', 'node-agent-objects', 'node-agent-pods']; // prettier-ignore
    await expect
      .poll(checks, { interval: 200, timeout: 60_000 })
      .toEqual(names.map((name) => [`longshore-${name}`, {}]));
  }, 70_000);

  describe('of pods', () => {
    it.each(Object.keys(MADE))('admit %s', async (name) => {
      const [kind, more, config] = MADE[name] as (typeof MADE)[string];
      expect(await make(podOf(kind, more, config))).toBe('admitted');
    });

    it.each(Object.keys(ATTACKS))('refuse the agent %s', async (name) => {
      const [kind, change, words] = ATTACKS[name] as (typeof ATTACKS)[string];
      const pod = structuredClone(podOf(kind)) as unknown as Draft;
      change(pod);
      const said = await make(pod);
      expect(said).toMatch(words);
      expect(said).toContain("ValidatingAdmissionPolicy 'longshore-node-agent-pods'");
    });

    it.each(Object.entries(IDENTITIES))(
      'admit the variables that the webhook of %s adds',
      async (_, added) => {
        const pod = structuredClone(podOf('data-upload')) as unknown as Draft;
        for (const [name, value] of Object.entries(added)) container(pod).env.push({ name, value });
        expect(await make(pod)).toBe('admitted');
      },
    );

    it('admit a privileged data mover of a pod where the DaemonSet says so, and only that', async () => {
      const privileged = { ...CONFIG, privilegedFsBackup: true };
      const ofPod = podOf('pod-volume-backup', {}, privileged);
      expect(await make(ofPod)).toContain('longshore.io/privileged-fs-backup');
      await cluster.annotate({ 'longshore.io/privileged-fs-backup': 'true' });
      await expect.poll(() => make(ofPod), { interval: 100 }).toBe('admitted');
      const upload = structuredClone(podOf('data-upload')) as unknown as Draft;
      container(upload).securityContext = { privileged: true, capabilities: { drop: ['ALL'] } };
      expect(await make(upload)).toContain('not privileged');
      await cluster.annotate({ 'longshore.io/privileged-fs-backup': null });
    });

    it('admit another image and command where the flags of the agent name them', async () => {
      const { spec } = await cluster.api.client.get(DAEMON_SETS, {
        namespace: 'velero',
        name: AGENT,
      });
      const flags = ['--data-mover-image', 'velero:1', '--data-mover-command=/bin/velero --x'];
      const pod = structuredClone(podOf('data-upload')) as unknown as Draft;
      container(pod).image = 'velero:1';
      container(pod).command = ['/bin/velero', '--x', 'data-mover', 'backup'];
      const args = (more: string[]): Promise<string> =>
        cluster.api.kubectl(
          ...['-n', 'velero', 'patch', 'daemonset', AGENT, '--type=json', '-p'],
          JSON.stringify([
            {
              op: 'replace',
              path: '/spec/template/spec/containers/0/args',
              value: [...(spec.template.spec.containers[0]?.args ?? []), ...more],
            },
          ]),
        );
      await args(flags);
      await expect.poll(() => make(pod), { interval: 100 }).toBe('admitted');
      await args([]);
      await expect.poll(() => make(pod), { interval: 100 }).toContain('the image of its DaemonSet');
    });

    it('admit only the image mirrors, digests and DNS options that the DaemonSet names', async () => {
      const { spec } = await cluster.api.client.get(DAEMON_SETS, {
        namespace: 'velero',
        name: AGENT,
      });
      const before = spec.template.spec.containers[0]?.image ?? '';
      const own = 'registry.test:5000/team/longshore:1';
      const set = (image: string): Promise<string> =>
        cluster.api.kubectl('-n', 'velero', 'set', 'image', `daemonset/${AGENT}`, `*=${image}`);
      const digest = `@sha256:${'a'.repeat(64)}`;
      const changed = (change: Change): Promise<string> => {
        const pod = structuredClone(podOf('data-upload')) as unknown as Draft;
        container(pod).image = own;
        change(pod);
        return make(pod);
      };
      const image = (text: string): Promise<string> => changed(ofContainer('image', text));
      const dns = (dnsConfig: object): Promise<string> => changed(ofPod('dnsConfig', dnsConfig));
      const mirrored = [
        'mirror.test/registry.test:5000/team/longshore:1',
        'mirror.test/team/longshore:1',
      ];
      const ndots = { options: [{ name: 'ndots', value: '1' }] };
      await set(own);
      await expect.poll(() => image(own), { interval: 100 }).toBe('admitted');
      for (const text of [...mirrored, own + digest]) {
        expect(await image(text), text).toContain('longshore.io/image-mirrors');
      }
      expect(await dns(ndots)).toContain('the DNS of its DaemonSet');
      await cluster.annotate({
        'longshore.io/image-mirrors': 'other.test/x/, mirror.test/,open.test',
        'longshore.io/image-digests': 'true',
        'longshore.io/dns-options': 'true',
      });
      await expect.poll(() => image(mirrored[0] ?? ''), { interval: 100 }).toBe('admitted');
      for (const text of [
        ...mirrored,
        `other.test/x/team/longshore:1`,
        own + digest,
        `mirror.test/team/longshore${digest}`,
        `${mirrored[1] ?? ''}${digest}`,
      ]) {
        expect(await image(text), text).toBe('admitted');
      }
      for (const text of [
        'mirror.test/evil/longshore:1',
        'mirror.test/longshore:1',
        'mirror.test/team/longshore:2',
        'mirror.test/team/longshore',
        'mirror.test.evil/team/longshore:1',
        'evil/mirror.test/team/longshore:1',
        'team/longshore:1',
        'open.test/team/longshore:1',
        'open.testteam/longshore:1',
        `evil${digest}`,
        `registry.test${digest}`,
        `registry.test:5000/team${digest}`,
        `mirror.test/team${digest}`,
        `${own}@sha256:a`,
        `${own}${digest}x`,
        '',
      ]) {
        expect(await image(text), text).not.toBe('admitted');
      }
      expect(await dns(ndots)).toBe('admitted');
      for (const more of [{ nameservers: ['1.1.1.1'] }, { searches: ['evil.test'] }]) {
        expect(await dns({ ...ndots, ...more })).toContain('the DNS of its DaemonSet');
      }
      // All other rules stay as strict.
      for (const name of [
        'the account of the server',
        'a second container',
        'the root of the node',
        'code in a variable',
        'another DNS server',
      ]) {
        const [, change, words] = ATTACKS[name] as (typeof ATTACKS)[string];
        expect(await changed(change), name).toMatch(words);
      }
      await cluster.annotate({
        'longshore.io/image-mirrors': null,
        'longshore.io/image-digests': null,
        'longshore.io/dns-options': null,
      });
      await set(before);
      await expect.poll(() => make(podOf('data-upload')), { interval: 100 }).toBe('admitted');
    });

    it('admit labels, tolerations and annotations that a webhook adds', async () => {
      const pod = structuredClone(podOf('data-upload')) as unknown as Draft;
      pod.metadata.labels = { ...pod.metadata.labels, 'kyverno.io/team': 'a' };
      pod.metadata.annotations = {
        ...pod.metadata.annotations,
        'policies.kyverno.io/patches': 'b',
      };
      pod.spec.tolerations = [{ operator: 'Exists' }];
      expect(await make(pod)).toBe('admitted');
    });

    it('admit the pull secrets that the API server adds from the ServiceAccount', async () => {
      const account = { namespace: 'velero', name: MOVER };
      const found = await cluster.api.client.get(SERVICE_ACCOUNTS, account);
      const imagePullSecrets = [{ name: 'longshore-data-mover-dockercfg-abcde' }];
      await cluster.api.client.replace(SERVICE_ACCOUNTS, { ...found, imagePullSecrets } as never);
      const body = { apiVersion: 'v1', kind: 'Pod', ...podOf('data-upload') };
      const made = async (): Promise<unknown> =>
        ((await agent.raw({ method: 'POST', path: `${pods}?dryRun=All`, body })) as Pod).spec
          .imagePullSecrets;
      await expect.poll(made, { interval: 100 }).toEqual(imagePullSecrets);
    });

    it("apply to nobody once Velero's own agent has the place of ours", async () => {
      const ref = { namespace: 'velero', name: AGENT };
      const patch = (args: readonly string[]): Promise<unknown> =>
        cluster.api.kubectl(
          ...['-n', 'velero', 'patch', 'daemonset', AGENT, '--type=json', '-p'],
          JSON.stringify([
            { op: 'replace', path: '/spec/template/spec/containers/0/args', value: args },
          ]),
        );
      const { spec } = await cluster.api.client.get(DAEMON_SETS, ref);
      const other = { metadata: { name: 'z' }, spec: { containers: [{ name: 'a', image: 'b' }] } };
      expect(await make(other)).toContain('denied request');
      await patch(['node-agent', 'server', '--features=EnableCSI']);
      await expect.poll(() => make(other), { interval: 100 }).toBe('admitted');
      await patch(spec.template.spec.containers[0]?.args ?? []);
      await expect.poll(() => make(other), { interval: 100 }).toContain('denied request');
    });

    it('say nothing about the pods of others', async () => {
      const pod = { metadata: { name: 'y' }, spec: { containers: [{ name: 'a', image: 'b' }] } };
      expect(await make({ ...pod, spec: { ...pod.spec, serviceAccountName: MOVER } }, cluster.api.client)).toBe('admitted'); // prettier-ignore
    });

    it('keep the agent away from the server and from other namespaces', async () => {
      const pod = {
        metadata: { name: 'server' },
        spec: { containers: [{ name: 'a', image: 'b' }] },
      };
      await cluster.api.client.create(PODS, { metadata: { name: 'server', namespace: 'velero' }, spec: { ...pod.spec, serviceAccountName: MOVER } }); // prettier-ignore
      expect(await cluster.answer(agent, 'DELETE', `${pods}/server`)).toContain(
        'no pods but data movers',
      );
      const none = /cannot (create|patch|update|get)/;
      const elsewhere = '/api/v1/namespaces/app/pods';
      const body = { apiVersion: 'v1', kind: 'Pod', ...podOf('data-upload') };
      expect(
        await cluster.answer(agent, 'POST', elsewhere, { ...body, metadata: { name: 'x' } }),
      ).toMatch(none);
      expect(
        await cluster.answer(agent, 'PATCH', `${pods}/server`, {
          metadata: { labels: { a: 'b' } },
        }),
      ).toMatch(none);
      expect(
        await cluster.answer(agent, 'PATCH', `${pods}/server/ephemeralcontainers`, {}),
      ).toMatch(none);
      expect(await cluster.answer(agent, 'POST', `${pods}/server/exec`, {})).toMatch(none);
      expect(await cluster.answer(agent, 'POST', `${pods}/server/binding`, {})).toMatch(none);
      const token = `/api/v1/namespaces/velero/serviceaccounts/${MOVER}/token`;
      expect(await cluster.answer(agent, 'POST', token, { apiVersion: 'authentication.k8s.io/v1', kind: 'TokenRequest', spec: {} })).toMatch(none); // prettier-ignore
      await expect(
        agent.raw({
          method: 'GET',
          path: '/api/v1/namespaces/velero/secrets/velero-repo-credentials',
        }),
      ).rejects.toThrow(none);
    });
  });
});
