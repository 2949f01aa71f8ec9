import { describe, expect, it } from 'vitest';
import type { BackupRepository, Deployment } from '../../../../src/kube/index.ts';
import {
  jobNameOf,
  maintenanceJob,
  repositoryLabelOf,
} from '../../../../src/server/repositories/maintenance/job.ts';
import {
  type JobConfig,
  jobConfigOf,
} from '../../../../src/server/repositories/maintenance/job-config.ts';
import { outlineOf } from '../../../../src/server/repositories/maintenance/job-outline.ts';

const REPOSITORY = {
  metadata: { name: 'app-default-kopia', namespace: 'velero', uid: 'u1' },
  spec: { volumeNamespace: 'app', backupStorageLocation: 'default', repositoryType: 'kopia' },
} as unknown as BackupRepository;
const DEPLOYMENT = {
  metadata: { name: 'longshore-server', namespace: 'velero' },
  spec: {
    template: {
      metadata: {
        labels: { 'azure.workload.identity/use': 'true', other: 'x' },
        annotations: { 'iam.amazonaws.com/role': 'backup', other: 'x' },
      },
      spec: {
        serviceAccountName: 'longshore-server',
        imagePullSecrets: [{ name: 'pull' }],
        securityContext: { runAsNonRoot: true },
        volumes: [{ name: 'cloud-credentials', secret: { secretName: 'cloud' } }],
        tolerations: [
          { key: 'CriticalAddonsOnly', operator: 'Exists' },
          { key: 'mine', operator: 'Exists' },
        ],
        containers: [
          {
            name: 'server',
            image: 'longshore:1',
            env: [{ name: 'HTTPS_PROXY', value: 'http://proxy' }],
            envFrom: [{ configMapRef: { name: 'proxy' } }],
            volumeMounts: [{ name: 'cloud-credentials', mountPath: '/credentials' }],
            securityContext: { readOnlyRootFilesystem: true },
          },
        ],
      },
    },
  },
} as unknown as Deployment;
const build = (config: JobConfig = {}, deployment = DEPLOYMENT) =>
  maintenanceJob({
    name: 'app-default-kopia-maintain-job-1',
    repository: REPOSITORY,
    deployment,
    config,
    command: ['/velero'],
    logLevel: 'debug',
    logFormat: 'json',
  });

describe('a maintenance Job', () => {
  it("takes over of the server's pod what reaches the storage, as Velero's does", () => {
    const { metadata, spec } = build();
    expect(metadata.labels).toEqual({
      'velero.io/repo-name': 'app-default-kopia',
      'longshore.io/repo-maintenance': 'true',
      'velero.io/exclude-from-backup': 'true',
    });
    expect(metadata.ownerReferences).toMatchObject([{ kind: 'BackupRepository', uid: 'u1' }]);
    expect(spec).toMatchObject({ backoffLimit: 0, podReplacementPolicy: 'Failed' });
    expect(spec.template.metadata).toEqual({
      labels: {
        'azure.workload.identity/use': 'true',
        'velero.io/repo-name': 'app-default-kopia',
        'velero.io/exclude-from-backup': 'true',
      },
      annotations: { 'iam.amazonaws.com/role': 'backup' },
    });
    const { containers, ...pod } = spec.template.spec;
    expect(pod).toMatchObject({
      serviceAccountName: 'longshore-server',
      imagePullSecrets: [{ name: 'pull' }],
      securityContext: { runAsNonRoot: true },
      restartPolicy: 'Never',
      tolerations: [{ key: 'CriticalAddonsOnly', operator: 'Exists' }],
    });
    expect(containers).toEqual([
      {
        name: 'velero-repo-maintenance-container',
        image: 'longshore:1',
        imagePullPolicy: 'IfNotPresent',
        command: ['/velero'],
        args: [
          'repo-maintenance',
          '--repo-name=app',
          '--repo-type=kopia',
          '--backup-storage-location=default',
          '--log-level=debug',
          '--log-format=json',
        ],
        env: [
          { name: 'HTTPS_PROXY', value: 'http://proxy' },
          { name: 'LONGSHORE_JOB_NAME', value: 'app-default-kopia-maintain-job-1' },
          {
            name: 'LONGSHORE_JOB_UID',
            valueFrom: { fieldRef: { fieldPath: "metadata.labels['controller-uid']" } },
          },
        ],
        envFrom: [{ configMapRef: { name: 'proxy' } }],
        volumeMounts: [{ name: 'cloud-credentials', mountPath: '/credentials' }],
        securityContext: { readOnlyRootFilesystem: true },
        terminationMessagePolicy: 'FallbackToLogsOnError',
      },
    ]);
  });

  it('does not get the TLS key of the server', () => {
    const deployment = structuredClone(DEPLOYMENT);
    const { spec } = deployment.spec.template;
    const volumes = [...(spec.volumes ?? []), { name: 'longshore-tls', secret: {} }];
    const [server] = spec.containers;
    const mount = { name: 'longshore-tls', mountPath: '/tls' };
    const volumeMounts = [...(server?.volumeMounts ?? []), mount];
    Object.assign(spec, { volumes, containers: [{ ...server, volumeMounts }] });
    const text = JSON.stringify(build({}, deployment));
    expect(text).not.toContain('longshore-tls');
    expect(text).toContain('cloud-credentials');
  });

  it('runs under an account of its own where the server names one', () => {
    const deployment = structuredClone(DEPLOYMENT);
    const { template } = deployment.spec;
    template.metadata = {
      annotations: { 'longshore.io/repo-maintenance-service-account': 'fewer-rights' },
    };
    expect(build({}, deployment).spec.template.spec.serviceAccountName).toBe('fewer-rights');
  });

  it('is placed, sized and labelled as the ConfigMap says', () => {
    const { template } = build({
      loadAffinity: [
        { nodeSelector: { matchLabels: { disk: 'ssd' } } },
        { nodeSelector: { matchLabels: { ignored: 'yes' } } },
      ],
      podResources: { cpuRequest: '100m', memoryLimit: '1Gi', memoryRequest: '0' },
      priorityClassName: 'low',
      podLabels: { team: 'backup' },
      podAnnotations: { note: 'n' },
    }).spec;
    expect(template.metadata).toEqual({
      labels: {
        team: 'backup',
        'velero.io/repo-name': 'app-default-kopia',
        'velero.io/exclude-from-backup': 'true',
      },
      annotations: { note: 'n' },
    });
    expect(template.spec.priorityClassName).toBe('low');
    expect(template.spec.containers[0]?.resources).toEqual({
      requests: { cpu: '100m' },
      limits: { memory: '1Gi' },
    });
    expect(template.spec.affinity).toEqual({
      nodeAffinity: {
        requiredDuringSchedulingIgnoredDuringExecution: {
          nodeSelectorTerms: [
            {
              matchExpressions: [
                { key: 'disk', operator: 'In', values: ['ssd'] },
                { key: 'kubernetes.io/os', operator: 'NotIn', values: ['windows'] },
              ],
            },
          ],
        },
      },
    });
  });

  it('is refused where a size is none, and where there is nothing to make it after', () => {
    expect(() => build({ podResources: { memoryLimit: '1 gig' } })).toThrow(
      'podResources.memoryLimit: "1 gig" is not a quantity such as 500m or 1Gi',
    );
    const empty = structuredClone(DEPLOYMENT);
    empty.spec.template.spec.containers = [];
    expect(() => build({}, empty)).toThrow('has no container to make maintenance Jobs after');
  });

  it('has a name and a label that fit, however long the repository is called', () => {
    const short = { name: 'app-default-kopia', uid: 'one' };
    expect(jobNameOf(short, 1700)).toBe('app-default-kopia-maintain-job-1700');
    const long = ['one', 'two'].map((uid) => jobNameOf({ name: 'x'.repeat(60), uid }, 1700));
    expect(long[0]).toMatch(/^repo-maintain-job-[0-9a-f]{10}-1700$/);
    // Both began in the same millisecond.
    expect(long[0]).not.toBe(long[1]);
    expect(repositoryLabelOf('x'.repeat(63))).toBe('x'.repeat(63));
    // Go: fmt.Sprintf("%x", sha3.Sum224([]byte(strings.Repeat("x", 64))))
    expect(repositoryLabelOf('x'.repeat(64))).toMatch(/^[0-9a-f]{56}$/);
  });

  it('has ended when its controller says so, not when a pod of it has failed', () => {
    const metadata = { name: 'j', uid: 'u', creationTimestamp: '2026-05-01T12:00:00Z' };
    const endOf = (status: object) => outlineOf({ metadata, status } as never).end;
    expect(endOf({ active: 1, failed: 1 })).toBeUndefined();
    const condition = { status: 'True', lastTransitionTime: '2026-05-01T12:05:00Z' };
    expect(endOf({ failed: 1, conditions: [{ ...condition, type: 'Failed' }] })).toEqual({
      isSuccess: false,
      atNs: BigInt(Date.parse('2026-05-01T12:05:00Z')) * 1_000_000n,
    });
    expect(endOf({ succeeded: 1, completionTime: '2026-05-01T12:04:00Z' })).toEqual({
      isSuccess: true,
      atNs: BigInt(Date.parse('2026-05-01T12:04:00Z')) * 1_000_000n,
    });
  });
});

describe("Velero's ConfigMap of maintenance Jobs", () => {
  const configOf = (data: Record<string, object | string>): JobConfig =>
    jobConfigOf(
      'settings',
      Object.fromEntries(
        Object.entries(data).map(([key, value]) => [
          key,
          typeof value === 'string' ? value : JSON.stringify(value),
        ]),
      ),
      REPOSITORY,
    );

  it('says for one repository what is different there; priority, labels and annotations are global', () => {
    const config = configOf({
      global: {
        podResources: { cpuRequest: '1' },
        loadAffinity: [{ nodeSelector: { matchLabels: { a: 'b' } } }],
        keepLatestMaintenanceJobs: 5,
        priorityClassName: 'low',
        podLabels: { team: 'backup' },
      },
      'app-default-kopia': {
        podResources: { memoryLimit: '1Gi' },
        keepLatestMaintenanceJobs: 0,
        priorityClassName: 'ignored',
        podLabels: { ignored: 'yes' },
      },
      'other-default-kopia': { keepLatestMaintenanceJobs: 9 },
    });
    expect(config).toMatchObject({
      podResources: { memoryLimit: '1Gi' },
      loadAffinity: [{ nodeSelector: { matchLabels: { a: 'b' } } }],
      keepLatestMaintenanceJobs: 0,
      priorityClassName: 'low',
      podLabels: { team: 'backup' },
    });
  });

  it('is refused with the key, and what is wrong there', () => {
    expect(() => configOf({ global: '{' })).toThrow(
      'ConfigMap settings, key global: it is not JSON',
    );
    expect(() => configOf({ 'app-default-kopia': { keepLatestMaintenanceJobs: -1 } })).toThrow(
      /^ConfigMap settings, key app-default-kopia: keepLatestMaintenanceJobs: /,
    );
  });
});
