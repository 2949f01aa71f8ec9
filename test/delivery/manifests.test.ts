import { cpSync, globSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { parse } from 'yaml';
import { NAMESPACES } from '../../src/kube/index.ts';
import { tempDirectory } from '../support/kopia.ts';
import {
  CHART,
  dryRun,
  expectTls,
  hasHelm,
  helm,
  kustomizationOnTop,
  type Manifest,
  mayDo,
  ofKind,
  parseManifests,
  renderChart,
  renderOverlay,
} from '../support/manifests.ts';
import { type RealApi, startRealApi } from '../support/real-api.ts';

const ROOT = new URL('../../', import.meta.url).pathname;
const DEFAULTS = new Set(['--data-movers=velero,longshore', '--agent-selector=role=node-agent']);
const OVERLAYS = [
  ['beside-velero', 'longshore-node-agent', []],
  [
    'instead-of-velero',
    'node-agent',
    [
      '--set',
      String.raw`name=node-agent,dataMovers=velero\,longshore,hostPodsPath=/var/lib/kubelet/pods`,
    ],
  ],
] as const;

/** The chart as manifests/server-for-backups. */
const FOR_BACKUPS = [
  ',server.controllers={backup,backup-operations,backup-finalizer,backup-deletion,gc,backup-repo,backup-storage-location,backup-sync,download-request,schedule,server-status-request,restore,restore-operations,restore-finalizer}',
  ...['server.features=EnableCSI', 'server.replicas=2', 'server.resources.limits.memory=1Gi'],
  ...['server.resources.requests.cpu=100m', 'server.resources.requests.memory=256Mi'],
].join(',');

interface Kustomization {
  readonly kind: string;
  readonly resources: readonly string[];
  readonly images?: unknown;
}
const IMAGE = 'registry.example.com/longshore:7';
const MANIFESTS = join(ROOT, 'manifests');
const kustomizationOf = (name: string): Kustomization =>
  parse(readFileSync(join(MANIFESTS, name, 'kustomization.yaml'), 'utf8')) as Kustomization;

/** Images of all containers, in objects of any kind. */
const imagesOf = (objects: unknown): string[] =>
  [...JSON.stringify(objects).matchAll(/"image":"([^"]*)"/g)].map(([, image = '']) => image);

/** Images of the files that an overlay includes, also by way of other overlays. */
const imagesBelow = (name: string): string[] =>
  kustomizationOf(name).resources.flatMap((path) => {
    if (!path.endsWith('.yaml')) return imagesBelow(join(name, path));
    return imagesOf(parseManifests(readFileSync(join(MANIFESTS, name, path), 'utf8')));
  });

const WITH_IMAGE = globSync('*/kustomization.yaml', { cwd: MANIFESTS })
  .map((file) => dirname(file))
  .filter((name) => kustomizationOf(name).kind === 'Kustomization' && imagesBelow(name).length > 0)
  .sort();

/** A copy of our manifests in which one overlay names `IMAGE`, as its comment says. */
function withImage(name: string): string {
  const copy = tempDirectory('manifests');
  cpSync(MANIFESTS, copy, { recursive: true });
  const file = join(copy, name, 'kustomization.yaml');
  const own = 'newName: registry.example.com/longshore\n    newTag: "7"';
  const text = readFileSync(file, 'utf8').replace('newName: longshore', own);
  writeFileSync(file, text);
  return join(copy, name);
}

describe('the image of an overlay', () => {
  it('belongs to these overlays', () => {
    expect(WITH_IMAGE).toEqual(
      expect.arrayContaining(['beside-velero', 'instead-of-velero', 'server', 'verify', 'whole']),
    );
  });

  // The name stays the same, so that an overlay on top can set it as well.
  it.each(WITH_IMAGE)('%s has an images stanza for all of its containers', (name) => {
    expect(new Set(imagesBelow(name))).toEqual(new Set(['longshore']));
    expect(kustomizationOf(name).images).toEqual([{ name: 'longshore', newName: 'longshore' }]);
  });
});

describe.skipIf(!hasHelm())('what is delivered, on a real API server', () => {
  let api: RealApi;
  beforeAll(async () => {
    api = await startRealApi(21_800);
    for (const name of ['velero', 'backup-b', 'backup-c', 'backup-d']) {
      await api.client.create(NAMESPACES, { metadata: { name } });
    }
  });
  afterAll(async () => {
    await api[Symbol.asyncDispose]();
  });

  it.each(OVERLAYS)('overlay %s is what the API server takes', async (name, daemonSet) => {
    const said = await dryRun(api, await renderOverlay(api, name));
    expect(said).toContain(`daemonset.apps/${daemonSet} created`);
    expect(said).not.toMatch(/warning|unknown/i);
  });

  it.each(OVERLAYS)(
    'the chart can be overlay %s: same rights, same pods',
    async (name, _, flags) => {
      const ours = parseManifests(await renderOverlay(api, name));
      const charts = parseManifests(renderChart(api, ...flags));
      for (const kind of ['Role', 'ClusterRole']) {
        const rules = ofKind(ours, kind).map((role) => role.rules);
        expect(rules.length).toBe(2);
        expect(ofKind(charts, kind).map((role) => role.rules)).toEqual(rules);
      }
      for (const kind of ['ValidatingAdmissionPolicy', 'ValidatingAdmissionPolicyBinding']) {
        // The chart's have the namespace in their names.
        const specs = (list: Manifest[]): unknown[] =>
          ofKind(list, kind).map(
            ({ spec }) => JSON.parse(JSON.stringify(spec).replaceAll('.velero"', '"')) as unknown,
          );
        expect(specs(ours).length).toBe(5);
        expect(specs(charts)).toEqual(specs(ours));
      }
      const names = (list: Manifest[]): string[] =>
        ['ServiceAccount', 'DaemonSet'].flatMap((kind) =>
          ofKind(list, kind).map(({ metadata }) => metadata.name),
        );
      expect(names(charts)).toEqual(names(ours));
      const podOf = (list: Manifest[]): object => {
        const { template, updateStrategy } = ofKind(list, 'DaemonSet')[0]?.spec ?? {};
        const { spec, metadata } = template ?? {};
        const [container = {}] = spec?.containers as Record<string, unknown>[];
        // The chart says some defaults too.
        const args = new Set((container.args as string[]).filter((arg) => !DEFAULTS.has(arg)));
        return {
          updateStrategy,
          metadata,
          spec: { ...spec, containers: [{ ...container, args, image: '' }] },
        };
      };
      expect(podOf(charts)).toEqual(podOf(ours));
      expect(await dryRun(api, renderChart(api, ...flags))).toContain('daemonset.apps/');
    },
  );

  it.each(WITH_IMAGE)('kubectl sets the image of overlay %s as its stanza says', async (name) => {
    const rendered = parseManifests(await api.kubectl('kustomize', withImage(name)));
    expect(new Set(imagesOf(rendered))).toEqual(new Set([IMAGE]));
  });

  it.each([
    ['server', 2, ''],
    [
      'server-for-cli',
      5,
      ',server.controllers={backup-repo,backup-storage-location,download-request,server-status-request}',
    ],
    ['server-for-backups', 10, FOR_BACKUPS],
  ])('the chart can be the overlay %s: same rights, same pods', async (name, roles, values) => {
    const ours = parseManifests(await renderOverlay(api, name));
    expect(await dryRun(api, await renderOverlay(api, name))).toContain('deployment.apps/');
    const flags = ['--set', `server.enabled=true${values}`];
    const charts = parseManifests(renderChart(api, ...flags));
    const rules = ofKind(ours, 'Role').map(({ metadata, rules: own }) => [metadata.name, own]);
    expect(rules.length).toBe(roles);
    const ofServer = ofKind(charts, 'Role').filter(({ metadata }) =>
      /-server|-repo-maintenance/.test(metadata.name),
    );
    expect(ofServer.map(({ metadata, rules: own }) => [metadata.name, own])).toEqual(rules);
    const boundOf = (list: Manifest[]): unknown[] =>
      ofKind(list, 'RoleBinding')
        .filter(({ roleRef }) => ofServer.some((role) => role.metadata.name === roleRef?.name))
        .map(({ roleRef, subjects = [] }) => [roleRef?.name, subjects.map((each) => each.name)]);
    expect(boundOf(charts)).toEqual(boundOf(ours));
    expect(boundOf(charts).length).toBe(roles);
    const podOf = (list: Manifest[]): object => {
      const { spec, metadata } = ofKind(list, 'Deployment')[0]?.spec?.template ?? {};
      const [container = {}] = spec?.containers as Record<string, unknown>[];
      const args = (container.args as string[]).filter((arg) => !/^--concurrent-/.test(arg));
      return { metadata, spec: { ...spec, containers: [{ ...container, args, image: '' }] } };
    };
    expect(podOf(charts)).toEqual(podOf(ours));
    for (const kind of ['ValidatingAdmissionPolicy', 'ValidatingAdmissionPolicyBinding']) {
      const specOf = (list: Manifest[]): unknown => {
        const found = ofKind(list, kind).find((each) =>
          /^longshore-server/.test(each.metadata.name),
        );
        return JSON.parse(JSON.stringify(found?.spec).replaceAll('.velero"', '"'));
      };
      expect(specOf(charts)).toEqual(specOf(ours));
    }
    expect(await dryRun(api, renderChart(api, ...flags))).toContain('deployment.apps/');
    expect(ofKind(parseManifests(renderChart(api)), 'Deployment')).toEqual([]);
  });

  it.each(OVERLAYS)('agents of overlay %s write nowhere but where they may', async (name) => {
    const [daemonSet] = ofKind(parseManifests(await renderOverlay(api, name)), 'DaemonSet');
    const { spec } = daemonSet?.spec?.template ?? {};
    expect(spec?.securityContext).toMatchObject({
      runAsNonRoot: true,
      seccompProfile: { type: 'RuntimeDefault' },
    });
    const [container] = spec?.containers as Record<string, unknown>[];
    expect(container?.securityContext).toEqual({
      allowPrivilegeEscalation: false,
      readOnlyRootFilesystem: true,
      capabilities: { drop: ['ALL'] },
    });
    const mounts = container?.volumeMounts as { mountPath: string }[];
    expect(mounts.map(({ mountPath }) => mountPath)).toEqual(
      expect.arrayContaining(['/scratch', '/tmp']),
    );
  });

  it('the verification by a CronJob is what the API server takes, and the chart has the same', async () => {
    const ours = await renderOverlay(api, 'verify');
    const flags = ['--set', 'verify.enabled=true'];
    expect(await dryRun(api, ours)).toContain('cronjob.batch/longshore-verify created');
    expect(await dryRun(api, renderChart(api, ...flags))).toContain('cronjob.batch/');
    const charts = parseManifests(renderChart(api, ...flags));
    const rulesOf = (list: Manifest[]): unknown =>
      ofKind(list, 'Role').find(({ metadata }) => metadata.name.endsWith('-verify'))?.rules;
    expect(rulesOf(charts)).toEqual(rulesOf(parseManifests(ours)));
    const specOf = (list: Manifest[]): unknown =>
      JSON.parse(JSON.stringify(ofKind(list, 'CronJob')[0]?.spec).replace(/"image":"[^"]*",?/, ''));
    expect(specOf(charts)).toEqual(specOf(parseManifests(ours)));
  });

  it('the change of all passwords by a Job is what the API server takes', async () => {
    const ours = await renderOverlay(api, 'change-password');
    expect(await dryRun(api, ours)).toContain('job.batch/longshore-change-password created');
    const [job] = ofKind(parseManifests(ours), 'Job');
    expect(job?.spec?.template.spec.serviceAccountName).toBe('longshore-change-password');
  });

  describe('in any namespace, under any name', () => {
    const may = async (account: string, namespace: string): Promise<boolean[]> => [
      await mayDo(api, account, 'patch', 'persistentvolumes'),
      await mayDo(api, account, 'create', 'pods', '-n', namespace),
    ];
    const mayMove = (account: string, namespace: string): Promise<boolean> =>
      mayDo(api, account, 'get', 'secrets/velero-repo-credentials', '-n', namespace);
    const daemonSetOf = async (namespace: string, name: string): Promise<Manifest> =>
      JSON.parse(
        await api.kubectl('-n', namespace, 'get', 'daemonset', name, '-o', 'json'),
      ) as Manifest;
    /** The name that the agent is told, and the account that it gives to data movers. */
    const told = ({ spec }: Manifest): unknown[] => {
      const [container] = spec?.template.spec.containers as {
        env: { name: string; value?: string }[];
      }[];
      const account = spec?.template.metadata.annotations;
      return [
        container?.env.find(({ name }) => name === 'LONGSHORE_DAEMONSET')?.value,
        account?.['longshore.io/data-mover-service-account'],
      ];
    };

    it('two overlays stand side by side, and one that is removed leaves the other', async () => {
      const second = await kustomizationOnTop(api, 'second', [
        'namespace: backup-b',
        'nameSuffix: -b',
        'resources: [manifests/beside-velero]',
      ]);
      await api.kubectl('apply', '-k', join(ROOT, 'manifests/instead-of-velero'));
      await api.kubectl('apply', '-k', second);
      const accountB = 'backup-b:longshore-node-agent-b';
      const account = 'velero:longshore-node-agent';
      expect(await may(account, 'velero')).toEqual([true, true]);
      expect(await may(accountB, 'backup-b')).toEqual([true, true]);
      expect(await mayMove('velero:longshore-data-mover', 'velero')).toBe(true);
      expect(await mayMove('backup-b:longshore-data-mover-b', 'backup-b')).toBe(true);
      // Each has its own namespace, and nothing of the other's.
      expect(await may(account, 'backup-b')).toEqual([true, false]);
      expect(await mayMove('backup-b:longshore-data-mover-b', 'velero')).toBe(false);
      const names = ['longshore-node-agent-b', 'longshore-data-mover-b'];
      expect(told(await daemonSetOf('backup-b', 'longshore-node-agent-b'))).toEqual(names);
      await api.kubectl('delete', '-k', second);
      expect(await may(accountB, 'backup-b')).toEqual([false, false]);
      expect(await may(account, 'velero')).toEqual([true, true]);
      await api.kubectl('delete', '-k', join(ROOT, 'manifests/instead-of-velero'));
      expect(await may(account, 'velero')).toEqual([false, false]);
    });

    it('the components for TLS and egress fit on every overlay', async () => {
      for (const overlay of ['whole', 'beside-velero', 'server-for-cli']) {
        const folder = await kustomizationOnTop(api, `secured-${overlay}`, [
          'namespace: velero',
          `resources: [manifests/${overlay}]`,
          'components: [manifests/tls, manifests/egress]',
        ]);
        const text = await api.kubectl('kustomize', folder);
        await dryRun(api, text);
        const all = parseManifests(text);
        const served = [...ofKind(all, 'DaemonSet'), ...ofKind(all, 'Deployment')];
        expect(served.length).toBe(overlay === 'whole' ? 2 : 1);
        const policies = JSON.stringify(ofKind(all, 'NetworkPolicy'));
        for (const { metadata, spec } of served) {
          expectTls(spec?.template.spec, 'longshore-tls');
          // Selected by the policy for egress.
          expect(spec?.template.metadata.labels.name).toBe(metadata.name);
          expect(policies).toContain(`"${metadata.name}"`);
        }
        expect(policies.match(/"policyTypes":\["Egress"\]/g)).toHaveLength(3);
      }
    });

    it('metrics and the page are for namespaces with a label only', async () => {
      for (const overlay of ['whole', 'beside-velero', 'server', 'status-page']) {
        const policies = ofKind(
          parseManifests(await renderOverlay(api, overlay)),
          'NetworkPolicy',
        ) as unknown as { spec: { ingress?: { from?: object[] }[] } }[];
        expect(policies.length).toBeGreaterThan(0);
        for (const { spec } of policies) {
          for (const { from } of spec.ingress ?? []) {
            expect(JSON.stringify(from)).toMatch(/"longshore.io\/may-(?:scrape|see-status-page)"/);
          }
        }
      }
    });

    it('the subject of an overlay is in the namespace that a user gives it', async () => {
      const moved = await kustomizationOnTop(api, 'moved', [
        'namespace: backup-c',
        'resources: [manifests/instead-of-velero]',
      ]);
      const manifests = parseManifests(await api.kubectl('kustomize', moved));
      for (const kind of ['RoleBinding', 'ClusterRoleBinding']) {
        for (const { subjects } of ofKind(manifests, kind)) {
          expect(subjects?.map(({ namespace }) => namespace)).toEqual(['backup-c']);
        }
      }
      expect(JSON.stringify(manifests)).not.toContain('"namespace":"velero"');
    });

    it('kustomizations of the documentation are what kustomize takes, and do what they say', async () => {
      const text = readFileSync(join(ROOT, 'docs/node-agent.md'), 'utf8');
      const blocks = [...text.matchAll(/```yaml\n(.*?)```/gs)].flatMap(([, block = '']) =>
        block.includes('resources: [manifests/') ? [block] : [],
      );
      const rendered: string[] = [];
      for (const [i, block] of blocks.entries()) {
        const folder = await kustomizationOnTop(api, `documented-${i}`, [block]);
        rendered.push(await api.kubectl('kustomize', folder));
      }
      expect(rendered.length).toBe(3);
      expect(rendered[0]).toContain('name: longshore-data-mover-b');
      const manifests = parseManifests(rendered[1] ?? '');
      expect(ofKind(manifests, 'ServiceAccount')[0]?.metadata).toMatchObject({
        name: 'longshore-data-mover',
        annotations: { 'azure.workload.identity/client-id': 'CLIENT' },
      });
      expect(ofKind(manifests, 'DaemonSet')[0]?.spec?.template.metadata).toMatchObject({
        labels: { 'azure.workload.identity/use': 'true', role: 'node-agent' },
      });
      expect(await dryRun(api, rendered[1] ?? '')).toContain('daemonset.apps/node-agent created');
      const openshift = ofKind(parseManifests(rendered[2] ?? ''), 'SecurityContextConstraints');
      expect(openshift.map(({ metadata }) => metadata.name)).toEqual([
        ...['longshore-data-mover', 'longshore-pod-volumes'],
      ]);
    });

    it('two releases of the chart stand side by side, and one that is removed leaves the other', async () => {
      const install = (release: string, namespace: string): string =>
        helm(api, 'install', release, CHART, '-n', namespace);
      install('longshore', 'backup-c');
      install('longshore', 'backup-d');
      const [first, second] = ['backup-c', 'backup-d'].map((name) => `${name}:longshore`);
      expect(await may(`${first}-node-agent`, 'backup-c')).toEqual([true, true]);
      expect(await may(`${second}-node-agent`, 'backup-d')).toEqual([true, true]);
      expect(await mayMove(`${first}-data-mover`, 'backup-c')).toBe(true);
      helm(api, 'uninstall', 'longshore', '-n', 'backup-c');
      expect(await may(`${first}-node-agent`, 'backup-c')).toEqual([false, false]);
      expect(await may(`${second}-node-agent`, 'backup-d')).toEqual([true, true]);
      expect(await mayMove(`${second}-data-mover`, 'backup-d')).toBe(true);
      helm(api, 'uninstall', 'longshore', '-n', 'backup-d');
    });

    it('a release of another name has names of its own', () => {
      const manifests = parseManifests(
        helm(api, 'template', 'nightly', CHART, '-n', 'velero', '--set', 'name=nightly-agent'),
      );
      expect(told(ofKind(manifests, 'DaemonSet')[0] as Manifest)).toEqual([
        ...['nightly-agent', 'nightly-longshore-data-mover'],
      ]);
      const bindings = ofKind(manifests, 'ClusterRoleBinding');
      const binding = bindings.find(({ metadata }) => metadata.name.includes('node-agent'));
      expect(binding).toMatchObject({
        metadata: { name: 'nightly-longshore-node-agent.velero' },
        roleRef: { name: 'nightly-longshore-node-agent.velero' },
        subjects: [{ name: 'nightly-longshore-node-agent', namespace: 'velero' }],
      });
    });
  });

  it('constraints for OpenShift are the same in overlay and chart, and are those of data movers', async () => {
    const folder = await kustomizationOnTop(api, 'openshift', [
      'nameSuffix: -b',
      'resources: [manifests/beside-velero]',
      'components: [manifests/openshift, manifests/openshift-file-system-backup]',
    ]);
    const ours = parseManifests(await api.kubectl('kustomize', folder));
    const flags = 'openshift.enabled=true,hostPodsPath=/var/lib/kubelet/pods';
    const charts = parseManifests(renderChart(api, '--set', flags));
    const constraintsOf = (list: Manifest[]): Record<string, unknown>[] =>
      ofKind(list, 'SecurityContextConstraints').map((constraints) =>
        Object.fromEntries(Object.entries(constraints).filter(([key]) => key !== 'metadata')),
      );
    const constraints = constraintsOf(ours);
    expect(constraints.length).toBe(2);
    expect(constraintsOf(charts)).toEqual(constraints);
    // All that a data mover asks for (src/exposer/hosting-pod.ts).
    const asked = ['CHOWN', 'DAC_OVERRIDE', 'DAC_READ_SEARCH', 'FOWNER', 'FSETID'];
    for (const { allowedCapabilities } of constraints) {
      expect((allowedCapabilities as string[]).toSorted()).toEqual(asked);
    }
    for (const [list, names] of [
      [ours, ['longshore-data-mover-b', 'longshore-pod-volumes-b']],
      [charts, ['longshore-data-mover.velero', 'longshore-pod-volumes.velero']],
    ] as const) {
      const own = ofKind(list, 'SecurityContextConstraints');
      expect(own.map(({ metadata }) => metadata.name)).toEqual(names);
      const uses = ofKind(list, 'Role')
        .filter(({ metadata }) => metadata.name.includes('-scc'))
        .map(({ rules }) => (rules?.[0] as { resourceNames?: string[] }).resourceNames);
      expect(uses).toEqual([[names[0]], ['nonroot-v2'], [names[1]]]);
    }
    // Without file-system backup nobody may mount directories of a node.
    const without = parseManifests(renderChart(api, '--set', 'openshift.enabled=true'));
    expect(constraintsOf(without)).toEqual([constraints[0]]);
  });
});
