import { execFile } from 'node:child_process';
import * as fs from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { parse } from 'yaml';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { ApiServer } from '../../../src/dev/index.ts';
import {
  BACKUP_STORAGE_LOCATIONS,
  BACKUPS,
  connectToCluster,
  DELETE_BACKUP_REQUESTS,
  type KubeClient,
  NAMESPACES,
  SCHEDULES,
  VOLUME_SNAPSHOT_LOCATIONS,
} from '../../../src/kube/index.ts';
import { runHere } from '../../support/command-line.ts';
import { tempDirectory } from '../../support/kopia.ts';
import { hasPeers, peer } from '../../support/real-api.ts';

const run = promisify(execFile);

const BACKUP_FLAGS: readonly (readonly string[])[] = [
  [],
  ['--ttl', '90m'],
  ['--ttl', '1500ms', '--csi-snapshot-timeout=1h0m1.5s', '--item-operation-timeout', '36h'],
  ['--include-namespaces', 'a,b', '--exclude-namespaces', 'c'],
  ['--include-namespaces', 'a', '--include-namespaces', 'b'],
  ['--include-namespaces', 'web-*'],
  ['--include-namespaces', ''],
  ['--include-resources', 'deployments.apps,pods', '--exclude-resources', 'secrets'],
  ['--include-cluster-resources'],
  ['--include-cluster-resources=false'],
  ['--include-cluster-resources='],
  ['--include-cluster-scoped-resources', '*', '--exclude-namespace-scoped-resources', 'secrets'],
  ['--exclude-cluster-scoped-resources=a.b', '--include-namespace-scoped-resources=c'],
  ['--snapshot-volumes', '--snapshot-move-data', '--data-mover', 'velero'],
  ['--snapshot-volumes=f', '--snapshot-move-data=0'],
  ['--default-volumes-to-fs-backup', '--parallel-files-upload', '4'],
  ['--default-volumes-to-fs-backup=true', '--parallel-files-upload=0'],
  ['--labels', 'a=b,c.d/e=f', '--annotations', 'x=y'],
  ['--labels', 'a=b', '--labels', 'c=d', '--labels', 'a=z'],
  ['--annotations', '"a=1,2",b=c=d', '--annotations', 'e='],
  ['-l', 'app=web'],
  ['--selector', 'app==web,tier in (b, a),z notin (q),there,!gone'],
  ['-l', 'a=b', '-l', 'c=d'],
  ['-l', ''],
  ['--or-selector', 'app=web or tier in (db) or x'],
  ['--ordered-resources', 'pods=ns1/a,ns1/b; persistentvolumes = c,d'],
  ['--storage-location', 'first'],
  ['--volume-snapshot-locations', 'one,two'],
  ['--volume-snapshot-locations', 'one', '--volume-snapshot-locations', 'two'],
  ['--resource-policies-configmap', 'policies'],
];

const RESTORE_FLAGS: readonly (readonly string[])[] = [
  [],
  ['--include-namespaces', 'a,b', '--exclude-namespaces', 'c', '--include-cluster-resources=false'],
  ['--namespace-mappings', 'a:b,c:d', '--namespace-mappings', 'e:f'],
  ['--existing-resource-policy', 'update', '--include-resources', 'pods'],
  ['--existing-resource-policy=none', '--exclude-resources=pods,secrets'],
  ['--restore-volumes=false', '--preserve-nodeports'],
  ['--restore-volumes', '--preserve-nodeports=F'],
  ['--status-include-resources', 'a,b', '--status-exclude-resources', 'b'],
  ['--status-exclude-resources', 'b'],
  ['-l', 'app=web', '--labels', 'a=b', '--annotations', 'c=d', '--item-operation-timeout', '10m'],
  ['--or-selector', 'a=b or c=d'],
  ['--resource-modifier-configmap', 'modifiers'],
  ['--resource-policies-configmap', 'policies'],
  ['--write-sparse-files', '--parallel-files-download', '8'],
  ['--write-sparse-files=false', '--parallel-files-download', '0'],
];

const SCHEDULE_FLAGS: readonly (readonly string[])[] = [
  ['--schedule', '0 2 * * *'],
  ['--schedule', '@every 6h', '--ttl', '720h', '--labels', 'a=b', '--snapshot-move-data'],
  ['--schedule', 'CRON_TZ=Europe/Berlin 30 1 * jan-mar mon,5', '--paused'],
  ['--schedule', '@daily', '--skip-immediately=true', '--use-owner-references-in-backup'],
  ['--schedule', '*/5 1-3/2 ? * *', '--skip-immediately', 'false', '-l', 'a in (b)'],
  ['--schedule', '@hourly', '--skip-immediately=', '--parallel-files-upload', '3'],
];

describe.skipIf(!hasPeers('velero'))("objects are those that Velero's command line makes:", () => {
  let server: ApiServer;
  let client: KubeClient;
  const directory = tempDirectory('velero-spec');
  const kubeconfig = join(directory, 'kubeconfig');

  beforeAll(async () => {
    server = await ApiServer.start();
    fs.writeFileSync(kubeconfig, server.kubeconfig);
    client = connectToCluster({ kubeconfig, userAgent: 'test/1' });
    const namespace = 'velero';
    await client.create(NAMESPACES, { metadata: { name: namespace } });
    await client.create(BACKUP_STORAGE_LOCATIONS, { metadata: { namespace, name: 'first' } });
    for (const name of ['one', 'two']) {
      await client.create(VOLUME_SNAPSHOT_LOCATIONS, { metadata: { namespace, name } });
    }
    for (const [name, phase, day] of [
      ['nightly-1', 'PartiallyFailed', '2026-11-02'],
      ['nightly-2', 'Completed', '2026-11-01'],
      ['nightly-3', 'Failed', '2026-11-03'],
    ]) {
      await client.create(BACKUPS, {
        metadata: { namespace, name, labels: { 'velero.io/schedule-name': 'nightly' } },
        spec: {},
        status: { phase, startTimestamp: `${day ?? ''}T00:00:00Z` },
      } as never);
    }
    const template = { ttl: '1h0m0s', includedNamespaces: ['app'], datamover: 'x' };
    for (const [name, spec] of Object.entries({
      nightly: { template, schedule: '@daily' },
      owner: {
        template: {
          ...template,
          metadata: { labels: { of: 'template' } },
          resourcePolicy: { kind: 'configmap', name: 'p' },
        },
        schedule: '@daily',
        useOwnerReferencesInBackup: true,
      },
    })) {
      await client.create(SCHEDULES, {
        metadata: { namespace, name, labels: { of: 'schedule' }, annotations: { note: 'n' } },
        spec,
      });
    }
  });
  afterAll(async () => {
    client.close();
    await server[Symbol.asyncDispose]();
  });

  /** Both may say that nothing is there by null, or by nothing. */
  const told = (value: unknown): unknown => {
    if (Array.isArray(value)) return value.map(told);
    if (typeof value !== 'object' || value === null) return value;
    const entries = Object.entries(value).filter(([, each]) => each !== null);
    return Object.fromEntries(entries.map(([name, each]) => [name, told(each)]));
  };

  interface Printed {
    readonly metadata: { readonly name: string };
    readonly spec: unknown;
  }
  const printed = (text: string): Printed => {
    const { metadata, spec, ...rest } = told(parse(text)) as Printed & { status?: unknown };
    // The object has no work done yet.
    delete rest.status;
    return { ...rest, metadata, spec };
  };

  async function both(...words: string[]): Promise<[ours: Printed, theirs: Printed]> {
    const { code, out, err } = await runHere(...words, '-o', 'yaml', '--kubeconfig', kubeconfig);
    expect(err).toBe('');
    expect(code).toBe(0);
    const { stdout } = await run(peer('velero'), [
      ...[...words, '-o', 'yaml', '--kubeconfig', kubeconfig, '--namespace', 'velero'],
    ]);
    // Velero logs its work on labels in between.
    return [printed(out), printed(stdout.replaceAll(/^time=.*\n/gm, ''))];
  }

  it.each(BACKUP_FLAGS.map((flags) => [flags.join(' '), flags] as const))(
    'backup create %s',
    async (_, flags) => {
      const [ours, theirs] = await both('backup', 'create', 'name', ...flags);
      expect(ours).toEqual(theirs);
    },
  );

  it.each(RESTORE_FLAGS.map((flags) => [flags.join(' '), flags] as const))(
    'restore create %s',
    async (_, flags) => {
      const words = ['restore', 'create', 'name', '--from-backup', 'nightly-1'];
      const [ours, theirs] = await both(...words, ...flags);
      expect(ours).toEqual(theirs);
    },
  );

  it.each(SCHEDULE_FLAGS.map((flags) => [flags.join(' '), flags] as const))(
    'schedule create %s',
    async (_, flags) => {
      const [ours, theirs] = await both('schedule', 'create', 'name', ...flags);
      expect(ours).toEqual(theirs);
    },
  );

  it.each([
    ['nightly', []],
    ['owner', ['--labels', 'a=b,of=flag', '--annotations', 'c=d']],
  ])('backup create of schedule %s', async (name, flags) => {
    const [ours, theirs] = await both('backup', 'create', '--from-schedule', name, ...flags);
    expect(ours.metadata.name).toMatch(new RegExp(`^${name}-\\d{14}$`));
    // A second may have gone by.
    expect(theirs.metadata.name).toMatch(new RegExp(`^${name}-\\d{14}$`));
    // Velero writes the label of the Backup into the template's own map, too, by mistake.
    delete (theirs.spec as { metadata: { labels?: Record<string, string> } }).metadata.labels?.[
      'velero.io/schedule-name'
    ];
    const unnamed = ({ metadata, ...rest }: Printed): object => ({
      ...rest,
      metadata: { ...metadata, name: '' },
    });
    expect(unnamed(ours)).toEqual(unnamed(theirs));
  });

  it.each([[[]], [['--allow-partially-failed']], [['--allow-partially-failed=false']]])(
    'restore create of a schedule %s',
    async (flags) => {
      const words = ['restore', 'create', '--from-schedule', 'nightly', ...flags];
      const [ours, theirs] = await both(...words);
      expect(ours.spec).toEqual(theirs.spec);
      const stamp = /^(.*)-\d{14}$/;
      expect(stamp.exec(ours.metadata.name)?.[1]).toBe(stamp.exec(theirs.metadata.name)?.[1]);
      // The same hour of the same zone.
      expect(ours.metadata.name.slice(0, -4)).toBe(theirs.metadata.name.slice(0, -4));
    },
  );

  it.each([
    ['backup', 'create', 'a', '--ttl', '1d'],
    ['backup', 'create', 'a', '-l', 'a!=b'],
    ['backup', 'create', 'a', '-l', 'a>1'],
    ['backup', 'create', 'a', '-l', 'a in ()b'],
    ['backup', 'create', 'a', '--labels', 'a'],
    ['backup', 'create', 'a', '--labels', '"a=b'],
    ['backup', 'create', 'a', '--snapshot-volumes=yes'],
    ['backup', 'create', 'a', '--snapshot-volumes', 'false'],
    ['backup', 'create', 'a', '--ordered-resources', 'pods'],
    ['backup', 'create', 'a', '--include-namespaces', 'a,*'],
    ['backup', 'create', 'a', '--include-resources=a', '--include-cluster-scoped-resources=b'],
    ['backup', 'create', 'a', '--selector=a=b', '--or-selector=a=b'],
    ['backup', 'create', '--from-schedule', ''],
    ['backup', 'create'],
    ['restore', 'create', 'a'],
    ['restore', 'create', 'a', '--from-backup=nightly-1', '--from-schedule=nightly'],
    ['restore', 'create', 'a', '--from-backup=nightly-1', '--existing-resource-policy=replace'],
    ['restore', 'create', 'a', '--from-backup=nightly-1', '--parallel-files-download=-1'],
    ['schedule', 'create', 'a'],
    ['schedule', 'create', '--schedule', '@daily'],
  ])('what Velero refuses is refused: %s %s %s %s %s %s', async (...words) => {
    const flags = [...words.filter((word) => word !== undefined), '--kubeconfig', kubeconfig];
    expect((await runHere(...flags)).code).toBe(2);
    await expect(run(peer('velero'), [...flags, '-o', 'yaml'])).rejects.toMatchObject({ code: 1 });
  });

  const EXCLUDED = 'velero.io/exclude-from-backup';
  interface Made {
    readonly labels?: Readonly<Record<string, string>>;
  }
  it('the request to delete a backup', async () => {
    const namespace = 'velero';
    const requests = async (name: string): Promise<unknown[]> => {
      const all = await client.list(DELETE_BACKUP_REQUESTS, { namespace });
      return all
        .filter(({ metadata }) => metadata.name.startsWith(name.slice(0, 20)))
        .map((request) => {
          const { labels, generateName } = request.metadata;
          return { labels, generateName, spec: (request as { spec?: unknown }).spec };
        });
    };
    const name = `long-${'x'.repeat(70)}`;
    await client.create(BACKUPS, { metadata: { namespace, name }, spec: {} });
    const flags = ['backup', 'delete', name, '--confirm', '--kubeconfig', kubeconfig];
    expect((await runHere(...flags)).code).toBe(0);
    await run(peer('velero'), [...flags, '--namespace', namespace]);
    const [one, other, ...more] = await requests(name);
    expect(more).toEqual([]);
    // Ours also keeps itself out of backups: a restored one would delete the backup again.
    const isOurs = ({ labels = {} }: Made): boolean => EXCLUDED in labels;
    const [ours, theirs] = [one, other].toSorted((each) => (isOurs(each as Made) ? -1 : 1));
    const { labels } = theirs as Made;
    expect(ours).toEqual({ ...(theirs as Made), labels: { ...labels, [EXCLUDED]: 'true' } });
  });
});
