import { describe, expect, it } from 'vitest';
import { silentLogger, systemClock } from '../../src/base/index.ts';
import { affinityFor, hostingAffinity } from '../../src/exposer/affinity.ts';
import {
  hostedName,
  hostingPod,
  type HostingPodRequest,
  type Template,
} from '../../src/exposer/hosting-pod.ts';
import type { ExposeConfig, ExposerOptions } from '../../src/exposer/index.ts';
import {
  DATA_UPLOADS,
  type KubeClient,
  type NewObject,
  parseExcludesVariable,
  type Pod,
} from '../../src/kube/index.ts';

const owner = {
  apiVersion: 'velero.io/v2alpha1',
  kind: 'DataUpload',
  metadata: { name: 'up', namespace: 'velero', uid: 'u-1', resourceVersion: '1' },
} as never;
const request: HostingPodRequest = {
  kind: 'data-upload',
  owner,
  resource: DATA_UPLOADS,
  dataMover: 'velero',
  storageLocation: 'default',
  volume: { claim: 'up' },
  isBlock: false,
  operationTimeout: '10m0s',
  affinity: undefined,
  volumeBytes: 4096,
};
const size = { 'longshore.io/volume-bytes': '4096' };
const uninjected = {
  labels: {
    'admission.datadoghq.com/enabled': 'false',
    'kuma.io/sidecar-injection': 'disabled',
    'sidecar.istio.io/inject': 'false',
  },
  annotations: {
    'consul.hashicorp.com/connect-inject': 'false',
    'dynatrace.com/inject': 'false',
    'linkerd.io/inject': 'disabled',
  },
};
const template: Template = {
  container: {
    name: 'node-agent',
    image: 'longshore:1',
    args: ['node-agent', 'server', '--log-level=debug', '--log-format', 'json', '--node=x'],
    env: [{ name: 'A', value: '1' }],
    volumeMounts: [{ name: 'cloud', mountPath: '/credentials' }],
  },
  spec: {
    containers: [],
    serviceAccountName: 'velero',
    imagePullSecrets: [{ name: 'pull' }],
    volumes: [{ name: 'cloud', secret: { secretName: 'cloud' } }],
    tolerations: [
      { key: 'CriticalAddonsOnly', operator: 'Exists' },
      { key: 'own', operator: 'Exists' },
    ],
  },
  labels: { 'azure.workload.identity/use': 'true', role: 'node-agent' },
  annotations: { 'iam.amazonaws.com/role': 'backup', other: 'x' },
};
const config: ExposeConfig = {
  loadAffinity: [],
  backupPvc: {},
  ignoreDelayBinding: false,
  podResources: {},
};
const options: ExposerOptions = {
  client: undefined as unknown as KubeClient,
  clock: systemClock,
  logger: silentLogger,
  namespace: 'velero',
  daemonSet: 'node-agent',
  prepareTimeoutMs: 1000,
  config,
};
const made = (
  more: Partial<HostingPodRequest> = {},
  settings: Partial<ExposerOptions> = {},
): NewObject<Pod> => hostingPod({ ...request, ...more }, template, { ...options, ...settings });

describe('a hosting pod', () => {
  it("runs the mover as Velero's agent would, on the image of the node", () => {
    const { spec, metadata } = made();
    expect(metadata).toMatchObject({
      name: 'up',
      namespace: 'velero',
      ownerReferences: [{ kind: 'DataUpload', name: 'up', uid: 'u-1', controller: true }],
    });
    expect(spec).toMatchObject({
      restartPolicy: 'Never',
      serviceAccountName: 'velero',
      imagePullSecrets: [{ name: 'pull' }],
      containers: [
        {
          name: 'u-1',
          image: 'longshore:1',
          imagePullPolicy: 'IfNotPresent',
          command: ['/velero', 'data-mover', 'backup'],
          args: [
            '--volume-path=/u-1',
            '--volume-mode=Filesystem',
            '--data-upload=up',
            '--resource-timeout=10m0s',
            '--log-format',
            'json',
            '--log-level=debug',
          ],
          volumeMounts: [
            { name: 'u-1', mountPath: '/u-1' },
            { name: 'cloud', mountPath: '/credentials' },
            { name: 'longshore-scratch-0', mountPath: '/tmp' },
            { name: 'longshore-scratch-1', mountPath: '/scratch' },
          ],
        },
      ],
      volumes: [
        { name: 'u-1', persistentVolumeClaim: { claimName: 'up' } },
        { name: 'cloud', secret: { secretName: 'cloud' } },
        { name: 'longshore-scratch-0', emptyDir: {} },
        { name: 'longshore-scratch-1', emptyDir: {} },
      ],
    });
  });

  it('may read or write what others own, and nothing else that root may', () => {
    const context = (kind: 'data-upload' | 'data-download'): object | undefined =>
      made({ kind }).spec.containers[0]?.securityContext;
    expect(context('data-upload')).toEqual({
      allowPrivilegeEscalation: false,
      readOnlyRootFilesystem: true,
      capabilities: { drop: ['ALL'], add: ['DAC_READ_SEARCH'] },
    });
    expect(context('data-download')).toEqual({
      allowPrivilegeEscalation: false,
      readOnlyRootFilesystem: true,
      capabilities: { drop: ['ALL'], add: ['CHOWN', 'DAC_OVERRIDE', 'FOWNER', 'FSETID'] },
    });
  });

  it('runs under the ServiceAccount that the template names for movers, else under that of the agent', () => {
    const annotations = { 'longshore.io/data-mover-service-account': 'longshore-data-mover' };
    const { spec, metadata } = hostingPod(request, { ...template, annotations }, options);
    expect(spec.serviceAccountName).toBe('longshore-data-mover');
    expect(metadata.annotations).toEqual({ ...uninjected.annotations, ...size });
    expect(made().spec.serviceAccountName).toBe('velero');
    const bare = hostingPod(request, { ...template, spec: { containers: [] } }, options);
    expect(bare.spec).not.toHaveProperty('serviceAccountName');
  });

  it('makes no system calls but the usual ones', () => {
    expect(made().spec.securityContext).toEqual({
      runAsUser: 0,
      seccompProfile: { type: 'RuntimeDefault' },
    });
  });

  const mountsWith = (
    more: { name: string; mountPath: string }[],
    env: Record<string, string> = {},
    settings: Partial<ExposerOptions> = {},
  ): string[] => {
    const container = {
      ...template.container,
      env: Object.entries(env).map(([name, value]) => ({ name, value })),
      volumeMounts: more,
    };
    const volumes = more.map(({ name }) => ({ name, emptyDir: {} }));
    const spec = { ...template.spec, volumes };
    const pod = hostingPod(request, { ...template, container, spec }, { ...options, ...settings });
    const [{ volumeMounts = [] } = { volumeMounts: [] }] = pod.spec.containers;
    expect(pod.spec.volumes?.map(({ name }) => name)).toEqual(volumeMounts.map(({ name }) => name));
    return volumeMounts.map(({ mountPath }) => mountPath);
  };

  it('can write to its home and its temporary files, and to no more of its root', () => {
    const scratch = { name: 'scratch', mountPath: '/scratch' };
    expect(mountsWith([scratch])).toEqual(['/u-1', '/scratch', '/tmp']);
    expect(mountsWith([scratch, { name: 't', mountPath: '/tmp/' }])).toEqual([
      ...['/u-1', '/scratch', '/tmp/'],
    ]);
    expect(mountsWith([scratch], { HOME: '/scratch/home', TMPDIR: '/scratch' })).toEqual([
      ...['/u-1', '/scratch'],
    ]);
    expect(mountsWith([scratch], { HOME: '/scratches' })).toContain('/scratches');
  });

  it('leaves the root of another image as it is', () => {
    const settings = { moverImage: 'other:2' };
    expect(mountsWith([], {}, settings)).toEqual(['/u-1']);
    const [container] = made({}, settings).spec.containers;
    expect(container?.securityContext).not.toHaveProperty('readOnlyRootFilesystem');
  });

  it('takes over the labels, annotations and tolerations of cloud add-ons, and no others', () => {
    const { metadata, spec } = made();
    expect(metadata.labels).toEqual({
      ...uninjected.labels,
      'azure.workload.identity/use': 'true',
      'velero.io/data-upload': 'up',
      'velero.io/exposer-pod-group': 'snapshot-exposer',
    });
    expect(metadata.annotations).toEqual({
      ...uninjected.annotations,
      'iam.amazonaws.com/role': 'backup',
      ...size,
    });
    expect(spec.tolerations).toEqual([{ key: 'CriticalAddonsOnly', operator: 'Exists' }]);
  });

  it('asks meshes and monitoring agents for no sidecar, unless the ConfigMap asks for one', () => {
    const { metadata } = made();
    expect(metadata).toMatchObject(uninjected);
    const podLabels = { 'sidecar.istio.io/inject': 'true' };
    const podAnnotations = { 'linkerd.io/inject': 'enabled' };
    expect(made({}, { config: { ...config, podLabels, podAnnotations } }).metadata).toMatchObject({
      labels: { 'kuma.io/sidecar-injection': 'disabled', ...podLabels },
      annotations: { 'dynatrace.com/inject': 'false', ...podAnnotations },
    });
  });

  it('takes over no directory of the node', () => {
    const host = { name: 'host-pods', hostPath: { path: '/var/lib/kubelet/pods' } };
    const mount = { name: 'host-pods', mountPath: '/host_pods' };
    const { container, spec: pod } = template;
    const { spec } = hostingPod(
      request,
      {
        ...template,
        container: { ...container, volumeMounts: [mount, ...(container.volumeMounts ?? [])] },
        spec: { ...pod, volumes: [host, ...(pod.volumes ?? [])] },
      },
      options,
    );
    const names = ['u-1', 'cloud', 'longshore-scratch-0', 'longshore-scratch-1'];
    expect(spec.volumes?.map(({ name }) => name)).toEqual(names);
    expect(spec.containers[0]?.volumeMounts?.map(({ name }) => name)).toEqual(names);
  });

  it('does not get the TLS key of the agent', () => {
    const tls = { name: 'longshore-tls', secret: { secretName: 'longshore-tls' } };
    const mount = { name: 'longshore-tls', mountPath: '/tls', readOnly: true };
    const { container, spec: pod } = template;
    const { spec } = hostingPod(
      request,
      {
        ...template,
        container: { ...container, volumeMounts: [mount, ...(container.volumeMounts ?? [])] },
        spec: { ...pod, volumes: [tls, ...(pod.volumes ?? [])] },
      },
      options,
    );
    expect(JSON.stringify(spec)).not.toContain('longshore-tls');
    expect(spec.volumes?.map(({ name }) => name)).toContain('cloud');
  });

  it('has the settings of its storage location before those of all', () => {
    const settings = {
      moverEnvironment: { A: '2', B: '3' },
      locationEnvironment: { default: { B: '4' }, other: { A: '5' } },
    };
    const { spec } = made({}, settings);
    const valueOf = (name: string): string | undefined =>
      spec.containers[0]?.env?.find((variable) => variable.name === name)?.value;
    expect([valueOf('A'), valueOf('B')]).toEqual(['2', '4']);
  });

  it('tells a backup which rules leave paths out, and no variable of its environment is read by them', () => {
    const variableOf = (
      excludedBy: HostingPodRequest['excludedBy'],
      excludePaths: ExposeConfig['excludePaths'],
    ): string | undefined => {
      const { spec } = made(
        { ...(excludedBy && { excludedBy }) },
        { config: { ...config, excludePaths } },
      );
      return spec.containers[0]?.env?.find(({ name }) => name === 'LONGSHORE_EXCLUDES')?.value;
    };
    const all = '.snapshot';
    const storageClasses = { nfs: '/logs\n/tmp', ssd: 'x' };
    const annotations = '$(AWS_SECRET_ACCESS_KEY)\n$$\u0000';
    const text = variableOf({ storageClass: 'nfs', annotations }, { all, storageClasses });
    expect(text).not.toMatch(/[$\n\0]/);
    expect(parseExcludesVariable(text)).toEqual({
      settings: all,
      storageClass: '/logs\n/tmp',
      annotations,
    });
    expect(
      parseExcludesVariable(variableOf({ storageClass: 'hdd' }, { isWithoutAnnotations: true })),
    ).toEqual({ isWithoutAnnotations: true });
    expect(variableOf({ storageClass: 'toString' }, { storageClasses })).toBeUndefined();
    // A restore leaves nothing out.
    expect(variableOf(undefined, { all })).toBeUndefined();
  });

  it('has what the ConfigMap says', () => {
    const podResources = { requests: { cpu: '1' }, limits: { memory: '1Gi' } };
    const { metadata, spec } = made(
      {},
      {
        moverImage: 'other:2',
        moverCommand: ['/bin/longshore'],
        moverEnvironment: { A: '2', B: '3' },
        config: {
          ...config,
          podResources,
          priorityClassName: 'backup',
          podLabels: { team: 'a' },
          podAnnotations: { note: 'b' },
        },
      },
    );
    expect(metadata.labels).toMatchObject({ team: 'a', 'velero.io/data-upload': 'up' });
    expect(metadata.labels).not.toHaveProperty('azure.workload.identity/use');
    expect(metadata.annotations).toEqual({ ...uninjected.annotations, note: 'b', ...size });
    expect(spec).toMatchObject({
      priorityClassName: 'backup',
      containers: [
        {
          image: 'other:2',
          imagePullPolicy: 'IfNotPresent',
          command: ['/bin/longshore', 'data-mover', 'backup'],
          resources: podResources,
          env: [
            { name: 'A', value: '2' },
            { name: 'B', value: '3' },
            {
              name: 'LONGSHORE_POD_UID',
              valueFrom: { fieldRef: { fieldPath: 'metadata.uid' } },
            },
          ],
        },
      ],
    });
  });

  it('has a device in block mode, and a read-only claim where that is wanted', () => {
    const block = made({ isBlock: true, kind: 'data-download' }).spec.containers[0];
    expect(block?.volumeDevices).toEqual([{ name: 'u-1', devicePath: '/u-1' }]);
    expect(block?.volumeMounts?.[0]).toEqual({ name: 'cloud', mountPath: '/credentials' });
    expect(block?.args).toContain('--volume-mode=Block');
    const { spec } = made({
      volume: { claim: 'up', readOnly: true },
      spcNoRelabeling: true,
    });
    expect(spec.volumes?.[0]?.persistentVolumeClaim).toEqual({ claimName: 'up', readOnly: true });
    expect(spec.containers[0]?.volumeMounts?.[0]).toMatchObject({ readOnly: true });
    expect(spec.securityContext).toMatchObject({ seLinuxOptions: { type: 'spc_t' } });
  });

  it('carries the label that its owner looks for', () => {
    for (const [dataMover, label] of [
      [undefined, 'velero.io/data-upload'],
      ['', 'velero.io/data-upload'],
      ['velero', 'velero.io/data-upload'],
      ['velero-fs', 'velero.io/data-upload'],
      ['longshore', 'longshore.io/data-upload'],
    ] as const) {
      const pod = made({ dataMover });
      expect(pod.metadata.labels?.[label]).toBe('up');
      expect(hostedName(pod as Pod, 'data-upload')).toBe('up');
      expect(hostedName(pod as Pod, 'data-download')).toBeUndefined();
    }
  });
});

describe('affinity', () => {
  const term = (matchExpressions: object[]): object => ({
    nodeAffinity: {
      requiredDuringSchedulingIgnoredDuringExecution: { nodeSelectorTerms: [{ matchExpressions }] },
    },
  });
  const notWindows = { key: 'kubernetes.io/os', operator: 'NotIn', values: ['windows'] };

  it('keeps off Windows nodes and those that are excluded', () => {
    expect(hostingAffinity(undefined)).toEqual(term([notWindows]));
    expect(hostingAffinity(undefined, [], ['n1'])).toEqual(
      term([notWindows, { key: 'kubernetes.io/hostname', operator: 'NotIn', values: ['n1'] }]),
    );
  });

  it('joins what is configured with each term of the topology', () => {
    const zone = (name: string): object => ({ key: 'zone', operator: 'In', values: [name] });
    const disk = { key: 'disk', operator: 'In', values: ['ssd'] };
    const topology = [{ matchExpressions: [zone('a')] }, { matchExpressions: [zone('b')] }];
    const entry = { nodeSelector: { matchLabels: { disk: 'ssd' } } };
    expect(hostingAffinity(entry, topology as never)).toEqual({
      nodeAffinity: {
        requiredDuringSchedulingIgnoredDuringExecution: {
          nodeSelectorTerms: [
            { matchExpressions: [zone('a'), disk, notWindows] },
            { matchExpressions: [zone('b'), disk, notWindows] },
          ],
        },
      },
    });
  });

  it('is that of the storage class, else that for all', () => {
    const all = { nodeSelector: { matchLabels: { for: 'all' } } };
    const fast = { nodeSelector: { matchLabels: { for: 'fast' } }, storageClass: 'fast' };
    expect(affinityFor([all, fast], 'fast')).toBe(fast);
    expect(affinityFor([all, fast], 'slow')).toBe(all);
    expect(affinityFor([fast], 'slow')).toBeUndefined();
  });
});
