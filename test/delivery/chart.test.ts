import * as fs from 'node:fs/promises';
import { readFileSync } from 'node:fs';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { parse } from 'yaml';
import { COMPRESSORS, NO_COMPRESSION } from '../../src/codec/index.ts';
import { MOVER_SETTINGS, moverVariables } from '../../src/mover/index.ts';
import { NAMESPACES, PODS } from '../../src/kube/index.ts';
import {
  CHART,
  dryRun,
  expectTls,
  hasHelm,
  helm,
  helmRefusal,
  type Manifest,
  ofKind,
  parseManifests,
  renderChart,
} from '../support/manifests.ts';
import { peer, type RealApi, startRealApi } from '../support/real-api.ts';

/** Each value of the chart, other than by default. */
const VALUES = {
  image: { repository: 'registry.test/agent', tag: 'v9', pullPolicy: 'Always' },
  imagePullSecrets: [{ name: 'pull' }],
  name: 'nightly',
  hostPodsPath: '/data/kubelet/pods',
  admissionPolicy: {
    enabled: true,
    inPlaceHostPaths: ['/srv/a', '/b'],
    privilegedFsBackup: true,
    imageMirrors: ['mirror.test/', 'other.test/x/'],
    imageDigests: true,
    dnsOptions: true,
  },
  commonLabels: { team: 'backup' },
  dataMovers: 'longshore,other',
  nodeAgentConfigMap: 'settings',
  backupRepositoryConfigMap: 'repositories',
  logLevel: 'debug',
  logFormat: 'json',
  credentials: { secretName: 'own-credentials' },
  driverSecrets: ['kms-token', 'kms-settings'],
  serviceAccount: { name: 'agent', annotations: { note: 'a' } },
  dataMover: {
    settings: {
      uploadLimit: '50MiB',
      downloadLimit: '1.5GB',
      requestsLimit: 100,
      storageStallTimeout: '1m30s',
      memoryLimit: '512MiB',
      cacheSize: 0,
      compression: 'zstd-fastest',
      parallelFilesUpload: 8,
      ignoreUnreadable: true,
    },
    serviceAccount: {
      name: 'mover',
      annotations: { 'eks.amazonaws.com/role-arn': 'arn:aws:iam::111122223333:role/backup' },
    },
  },
  podLabels: { 'azure.workload.identity/use': 'true' },
  podAnnotations: { 'iam.amazonaws.com/role': 'backup' },
  priorityClassName: 'system-node-critical',
  updateStrategy: { rollingUpdate: { maxUnavailable: 3 } },
  resources: { limits: { memory: '1Gi' } },
  nodeSelector: { disk: 'ssd' },
  tolerations: [{ operator: 'Exists' }],
  affinity: { podAntiAffinity: {} },
  dnsPolicy: 'Default',
  dnsConfig: { options: [{ name: 'ndots', value: '1' }] },
  podSecurityContext: { supplementalGroups: [7] },
  securityContext: { privileged: false },
  extraArgs: ['--data-mover-retries=9'],
  extraEnv: [{ name: 'A', value: 'b' }],
  extraEnvFrom: [{ configMapRef: { name: 'proxy' } }],
  extraVolumes: [{ name: 'ca', configMap: { name: 'ca' } }],
  extraVolumeMounts: [{ name: 'ca', mountPath: '/etc/ca' }],
};
/** Values that change existing objects. Each has its own test. */
const SWITCHES = [
  ...['fullnameOverride', 'rbac', 'networkPolicy', 'openshift', 'server', 'tls', 'verify'],
];

interface Container {
  readonly image: string;
  readonly args: string[];
  readonly env: { name: string; value?: string }[];
  readonly volumeMounts: { name: string; mountPath: string }[];
  readonly [field: string]: unknown;
}

interface Policy {
  readonly podSelector: object;
  readonly policyTypes: readonly string[];
  readonly ingress?: readonly object[];
  readonly egress?: readonly object[];
}

describe.skipIf(!hasHelm())('the chart', () => {
  let api: RealApi;
  beforeAll(async () => {
    api = await startRealApi(27_200);
    await api.client.create(NAMESPACES, { metadata: { name: 'velero' } });
  });
  afterAll(async () => {
    await api[Symbol.asyncDispose]();
  });

  const daemonSetOf = (text: string): Manifest => {
    const [daemonSet] = ofKind(parseManifests(text), 'DaemonSet');
    if (!daemonSet) throw new Error('there is no DaemonSet');
    return daemonSet;
  };
  const containerOf = (pod: Readonly<Record<string, unknown>> | undefined): Container =>
    (pod?.containers as [Container])[0];

  const policiesOf = (text: string): Map<string, Policy> =>
    new Map(
      ofKind(parseManifests(text), 'NetworkPolicy').map(({ metadata, spec }) => [
        metadata.name,
        spec as unknown as Policy,
      ]),
    );

  it('lets only the given peers read metrics, and makes egress policies on request', async () => {
    const own = policiesOf(renderChart(api, '--set', 'server.enabled=true'));
    const byDefault = {
      namespaceSelector: { matchLabels: { 'longshore.io/may-scrape': 'true' } },
    };
    for (const name of ['longshore-node-agent', 'longshore-server']) {
      expect(own.get(name)?.ingress).toEqual([{ from: [byDefault], ports: [{ port: 'metrics' }] }]);
    }
    expect([...own.values()].flatMap(({ policyTypes }) => policyTypes)).not.toContain('Egress');
    const egress = [{ ports: [{ port: 443 }] }];
    const networkPolicy = { metricsFrom: [], egress };
    const file = join(api.directory, 'policies.json');
    await fs.writeFile(file, JSON.stringify({ networkPolicy, server: { enabled: true } }));
    const text = renderChart(api, '-f', file);
    await dryRun(api, text);
    const open = policiesOf(text);
    expect(open.get('longshore-node-agent')?.ingress).toEqual([{ ports: [{ port: 'metrics' }] }]);
    const names = ['egress', 'data-movers-egress', 'repo-maintenance-egress'];
    for (const name of names) {
      expect(open.get(`longshore-node-agent-${name}`)).toMatchObject({
        policyTypes: ['Egress'],
        egress,
      });
    }
    expect(open.get('longshore-node-agent-egress')?.podSelector).toEqual({
      matchExpressions: [
        { key: 'name', operator: 'In', values: ['longshore-node-agent', 'longshore-server'] },
      ],
    });
  });

  it('serves TLS with a Secret, which probes speak too', async () => {
    const text = renderChart(api, '--set', 'tls.secretName=pair,server.enabled=true');
    await dryRun(api, text);
    const all = parseManifests(text);
    for (const { spec } of [...ofKind(all, 'DaemonSet'), ...ofKind(all, 'Deployment')]) {
      expectTls(spec?.template.spec, 'pair');
    }
    expect(renderChart(api, '--set', 'server.enabled=true')).not.toMatch(
      /longshore-tls|tls-certificate|scheme:/,
    );
  });

  it('passes every value on', async () => {
    const file = join(api.directory, 'values.json');
    await fs.writeFile(file, JSON.stringify(VALUES));
    const text = renderChart(api, '-f', file);
    expect(await dryRun(api, text)).toContain('daemonset.apps/nightly created');
    const { metadata, spec } = daemonSetOf(text);
    expect(metadata.labels).toMatchObject({ team: 'backup' });
    expect(spec?.updateStrategy).toEqual({
      type: 'RollingUpdate',
      rollingUpdate: { maxUnavailable: 3 },
    });
    expect(spec?.template.metadata).toMatchObject({
      labels: { name: 'nightly', role: 'nightly', 'azure.workload.identity/use': 'true' },
      annotations: {
        'iam.amazonaws.com/role': 'backup',
        'longshore.io/data-mover-service-account': 'mover',
        'longshore.io/host-pods': VALUES.hostPodsPath,
        'longshore.io/in-place-host-paths': '/srv/a,/b',
        'longshore.io/image-mirrors': 'mirror.test/,other.test/x/',
        'longshore.io/image-digests': 'true',
        'longshore.io/dns-options': 'true',
        'longshore.io/privileged-fs-backup': 'true',
      },
    });
    const pod = spec?.template.spec;
    expect(pod).toMatchObject({
      serviceAccountName: 'agent',
      imagePullSecrets: VALUES.imagePullSecrets,
      priorityClassName: 'system-node-critical',
      nodeSelector: { disk: 'ssd' },
      tolerations: [{ operator: 'Exists' }],
      affinity: { podAntiAffinity: {} },
      dnsPolicy: 'Default',
      dnsConfig: VALUES.dnsConfig,
      securityContext: { supplementalGroups: [7], runAsNonRoot: true },
    });
    expect(pod?.volumes).toEqual(expect.arrayContaining(VALUES.extraVolumes));
    expect(JSON.stringify(pod?.volumes)).toContain('"secretName":"own-credentials"');
    const container = containerOf(pod);
    expect(container).toMatchObject({
      image: 'registry.test/agent:v9',
      imagePullPolicy: 'Always',
      resources: { limits: { memory: '1Gi' }, requests: { cpu: '10m' } },
      envFrom: VALUES.extraEnvFrom,
      securityContext: { privileged: false, readOnlyRootFilesystem: true },
    });
    expect(container.args).toEqual([
      ...['node-agent', 'server', '--data-movers=longshore,other'],
      ...['--daemonset=$(LONGSHORE_DAEMONSET)', '--agent-selector=role=nightly'],
      ...['--node-agent-configmap=settings', '--backup-repository-configmap=repositories'],
      ...['--log-level=debug', '--log-format=json', '--data-mover-retries=9'],
    ]);
    expect(container.env).toEqual(
      expect.arrayContaining([
        { name: 'LONGSHORE_DAEMONSET', value: 'nightly' },
        ...MOVER_SETTINGS.map((setting) => ({
          name: Object.keys(moverVariables({ [setting]: 'x' }))[0],
          value: String(VALUES.dataMover.settings[setting]),
        })),
        ...VALUES.extraEnv,
      ]),
    );
    expect(container.volumeMounts).toContainEqual(VALUES.extraVolumeMounts[0]);
    const accounts = ofKind(parseManifests(text), 'ServiceAccount');
    expect(
      accounts.map((account) => [account.metadata.name, account.metadata.annotations]),
    ).toEqual([
      ['agent', { note: 'a' }],
      ['mover', VALUES.dataMover.serviceAccount.annotations],
    ]);
    // A new value of the chart must be added here.
    const all = Object.keys(parse(readFileSync(join(CHART, 'values.yaml'), 'utf8')) as object);
    expect([...Object.keys(VALUES), ...SWITCHES].sort()).toEqual(all.sort());
  });

  it('takes a digest in place of a tag, and a name for all objects', () => {
    const digest = `sha256:${'0f'.repeat(32)}`;
    const text = renderChart(api, '--set', `image.digest=${digest},fullnameOverride=own`);
    const { spec } = daemonSetOf(text);
    expect(containerOf(spec?.template.spec).image).toBe(`longshore@${digest}`);
    expect(spec?.template.spec.serviceAccountName).toBe('own-node-agent');
  });

  it('gives data movers an identity of the cloud without any Secret', async () => {
    const flags = [
      ...['--set', 'credentials.secretName='],
      '--set-string',
      String.raw`podLabels.azure\.workload\.identity/use=true`,
      '--set-string',
      String.raw`dataMover.serviceAccount.annotations.iam\.gke\.io/gcp-service-account=b@p.test`,
    ];
    const text = renderChart(api, ...flags);
    expect(JSON.stringify(daemonSetOf(text))).not.toMatch(/credentials/i);
    expect(await dryRun(api, text)).toContain('daemonset.apps/');
    const accounts = ofKind(parseManifests(text), 'ServiceAccount');
    expect(accounts[0]?.metadata).toMatchObject({
      name: 'longshore-data-mover',
      annotations: { 'iam.gke.io/gcp-service-account': 'b@p.test' },
    });
  });

  it('makes no policies for an account that others may have, and says so', () => {
    const policies = (...values: string[]): number =>
      ofKind(
        parseManifests(renderChart(api, '--set', values.join(','))),
        'ValidatingAdmissionPolicyBinding',
      ).length;
    expect(policies('logLevel=')).toBe(5);
    expect(policies('admissionPolicy.enabled=false')).toBe(0);
    const off = ['serviceAccount.create=false', 'serviceAccount.name=velero'];
    expect(policies(...off)).toBe(0);
    const flags = ['-n', 'velero', '--dry-run=server', '--set', off.join(',')];
    expect(helm(api, 'install', 'longshore', CHART, ...flags)).toContain(
      'WARNING: nothing limits what the agents may create',
    );
  });

  it('uses ServiceAccounts that are there, and makes none and no rights where it shall not', () => {
    const off = ['rbac.create=false', 'networkPolicy.enabled=false'];
    const none = ['serviceAccount.create=false', 'dataMover.serviceAccount.create=false'];
    const kinds = (...values: string[]): string[] =>
      parseManifests(renderChart(api, '--set', values.join(','))).map(({ kind }) => kind);
    expect(kinds(...off, ...none)).toEqual(['DaemonSet', 'Pod']);
    const accountsOf = (...values: string[]): unknown[] => {
      const { spec } = daemonSetOf(renderChart(api, '--set', values.join(',')));
      const { annotations } = spec?.template.metadata ?? {};
      return [
        spec?.template.spec.serviceAccountName,
        annotations?.['longshore.io/data-mover-service-account'],
      ];
    };
    expect(accountsOf(...none)).toEqual(['default', 'default']);
    expect(accountsOf(...none, 'serviceAccount.name=there')).toEqual(['there', 'there']);
    const both = ['serviceAccount.name=there', 'dataMover.serviceAccount.name=own'];
    expect(accountsOf(...none, ...both)).toEqual(['there', 'own']);
  });

  it.each([
    ['imagePullSecret=x', /additional properties 'imagePullSecret' not allowed/],
    ['image.pullPolicy=Sometimes', /\/image\/pullPolicy'.*one of 'IfNotPresent', 'Always'/],
    ['image.digest=abc', /\/image\/digest'.*does not match pattern/],
    ['name=Node_Agent', /\/name'.*does not match pattern/],
    ['dataMovers=', /\/dataMovers'/],
    ['dataMover.settings.uploadLimit=fast', /settings\/uploadLimit': 'fast' does not match/],
    [
      'dataMover.settings.compression=zip',
      /settings\/compression': value must be one of '', 'none'/,
    ],
    ['dataMover.settings.parallelFilesUpload=65', /settings\/parallelFilesUpload'/],
    ['dataMover.settings.uploadlimit=5', /'uploadlimit' not allowed/],
    ['updateStrategy.rollingUpdate.maxUnavailable=lots', /maxUnavailable': 'lots' does not match/],
    ['serviceAccount.anotations.a=b', /\/serviceAccount'.*'anotations' not allowed/],
    ['tolerations=all', /\/tolerations': got string, want array/],
    ['credentials.secret=x', /\/credentials'.*'secret' not allowed/],
    ['extraVolumeMounts[0].name=ca', /extraVolumeMounts\/0'.*mountPath/],
  ])('refuses %s, and says what is wrong', (value, message) => {
    const said = helmRefusal(api, 'template', 'longshore', CHART, '--set', value);
    expect(said).toMatch(message);
  });

  it('knows each compressor that there is', () => {
    const schema = JSON.parse(readFileSync(join(CHART, 'values.schema.json'), 'utf8')) as {
      properties: {
        dataMover: {
          properties: { settings: { properties: { compression: { enum: string[] } } } };
        };
      };
    };
    const { compression } = schema.properties.dataMover.properties.settings.properties;
    expect(compression.enum.toSorted()).toEqual(
      ['', NO_COMPRESSION, ...COMPRESSORS.map(({ name }) => name)].sort(),
    );
  });

  it('is in order by the word of helm lint', () => {
    expect(helm(api, 'lint', '--strict', CHART)).toContain('0 chart(s) failed');
  });

  it('says after an installation what it did and what is next, and can be tested and upgraded', async () => {
    const said = helm(api, 'install', 'longshore', CHART, '-n', 'velero');
    expect(said).toContain('DaemonSet velero/longshore-node-agent');
    expect(said).toContain('--snapshot-move-data --data-mover longshore');
    expect(said).toContain('without a registry');
    expect(said).not.toContain('WARNING');
    const upgraded = helm(
      ...([api, 'upgrade', 'longshore', CHART, '-n', 'velero'] as const),
      ...['--set', 'credentials.secretName=,image.repository=registry.test/longshore'],
    );
    expect(upgraded).toContain('longshore-data-mover is the one that needs it');
    expect(upgraded).not.toContain('without a registry');
    // No kubelet runs pods here: this test reports for the kubelet that the pod has succeeded.
    const env = { ...process.env, HOME: api.directory, KUBECONFIG: api.kubeconfig };
    const test = spawn(peer('helm'), ['test', 'longshore', '-n', 'velero'], { env });
    let output = '';
    test.stdout.on('data', (part: Buffer) => (output += part.toString()));
    const closed = once(test, 'close');
    const ref = { namespace: 'velero', name: 'longshore-test' };
    let pod = await api.client.find(PODS, ref);
    for (let i = 0; i < 100 && !pod; i++) {
      await sleep(100);
      pod = await api.client.find(PODS, ref);
    }
    expect(pod?.spec.serviceAccountName).toBe('longshore-node-agent');
    expect(pod?.spec.containers[0]).toMatchObject({
      image: 'registry.test/longshore:0.1.0',
      args: expect.arrayContaining(['status', '--namespace=velero']) as string[],
    });
    await api.client.patch(
      PODS,
      ref,
      { status: { phase: 'Succeeded' } },
      { subresource: 'status' },
    );
    const [code] = (await closed) as [number];
    expect(output).toMatch(/Phase:\s+Succeeded/);
    expect(code).toBe(0);
    helm(api, 'uninstall', 'longshore', '-n', 'velero');
  });
});
