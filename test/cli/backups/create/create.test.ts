import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import {
  BACKUPS,
  DELETE_BACKUP_REQUESTS,
  type KubeObject,
  RESTORES,
  SCHEDULES,
  validLabel,
} from '../../../../src/kube/index.ts';
import {
  readFlags,
  type RestoreSpecFlags,
} from '../../../../src/cli/backups/create/flag-values.ts';
import {
  assertCron,
  backupSpecOf,
  restoreSpecOf,
} from '../../../../src/cli/backups/create/specs.ts';
import { Api } from '../support/api.ts';

let api: Api;
beforeAll(async () => {
  api = await Api.start('create');
});
afterAll(() => api[Symbol.asyncDispose]());

const countAll = async (): Promise<number> => {
  const lists = await Promise.all(
    [BACKUPS, RESTORES, SCHEDULES, DELETE_BACKUP_REQUESTS].map((each) => api.client.list(each)),
  );
  return lists.flat().length;
};
it('fields of Velero 1.19 have the values of the flags', () => {
  expect(backupSpecOf(readFlags({ backupType: 'full' }))).toMatchObject({ backupType: 'Full' });
  const skipDefaultResourceModifier = true;
  const flags = readFlags<RestoreSpecFlags>({ skipDefaultResourceModifier: 'true' });
  expect(restoreSpecOf(flags)).toMatchObject({ skipDefaultResourceModifier });
});

const specOf = (object: KubeObject): unknown => (object as { spec?: unknown }).spec;

describe('what makes no sense is a usage error, and nothing is created:', () => {
  it.each([
    [['backup', 'create'], 'name the backup; only with --from-schedule'],
    [['backup', 'create', 'A_b'], '"A_b" is no name of a Backup'],
    [['backup', 'create', 'a', '--from-schedule', ' '], '--from-schedule has no value'],
    [['backup', 'create', 'a', '--ttl', 'month'], '--ttl "month" is not a duration such as 720h'],
    [['backup', 'create', 'a', '--ttl=-1h'], '--ttl "-1h" is not a duration'],
    [['backup', 'create', 'a', '--ttl', '1d'], '--ttl "1d" is not a duration'],
    [['backup', 'create', 'a', '--labels', 'a'], '--labels "a" is not of the form key=value'],
    [['backup', 'create', 'a', '--labels', 'a b=c'], '--labels: "a b" is no key of a label'],
    [['backup', 'create', 'a', '--labels', '"a=b'], 'the quotes in ""a=b" do not fit'],
    [['backup', 'create', 'a', '--labels', `a=${'x'.repeat(64)}`], 'is no value of a label'],
    [['backup', 'create', 'a', '-l', 'a!=b'], 'write "a notin (b)"'],
    [['backup', 'create', 'a', '-l', 'a>1'], '--selector "a>1": "a>1" is no key of a label'],
    [['backup', 'create', 'a', '--or-selector', 'a=b or ??'], '--or-selector "??"'],
    [['backup', 'create', 'a', '-l', 'a=b', '--or-selector', 'a=b'], 'either --selector or'],
    [['backup', 'create', 'a', '--snapshot-volumes=maybe'], 'is neither true nor false'],
    [['backup', 'create', 'a', '--parallel-files-upload', '-1'], 'is not a whole number'],
    [['backup', 'create', 'a', '--backup-type', 'all'], 'is neither Full nor Incremental'],
    [['backup', 'create', 'a', '--ordered-resources', 'pods'], 'is not of the form pods='],
    [['backup', 'create', 'a', '--include-namespaces', 'a_b'], 'invalid namespace "a_b"'],
    [
      ['backup', 'create', 'a', '--include-namespaces=a', '--exclude-namespaces=a'],
      'excludes list cannot contain an item in the includes list: a',
    ],
    [
      [
        ...['backup', 'create', 'a', '--include-resources=pods'],
        '--include-cluster-scoped-resources=*',
      ],
      'cannot be used together with flags for resources of one scope',
    ],
    [
      ['schedule', 'create', 's'.repeat(239), '--schedule', '@daily'],
      'the name has 239 characters: a schedule may have 238',
    ],
    [['restore', 'create', 'a'], 'give either --from-backup or --from-schedule'],
    [['restore', 'create', '--from-backup=a', '--from-schedule=b'], 'give either --from-backup'],
    [
      ['restore', 'create', '--from-backup=a', '--existing-volume-data-policy=all'],
      'Allowed choices are none, full, incremental',
    ],
    [
      ['restore', 'create', '--from-backup=a', '--delete-extra-files'],
      'give --existing-volume-data-policy full as well',
    ],
    [['restore', 'create', '--from-backup', 'a', '--namespace-mappings', 'a'], 'key:value'],
    [['schedule', 'create', 'a'], '--schedule says when'],
    [['schedule', 'create', 'a', '--schedule', '0 2 * *'], 'expected exactly 5 fields, found 4'],
    [
      ['schedule', 'create', 'a', '--schedule', '61 2 * * *'],
      'end of range (61) above maximum (59)',
    ],
    [['backup', 'get', '-l', '=x'], '--selector "=x"'],
    [['backup', 'delete'], 'name backups, or give --selector or --all: exactly one'],
    [['backup', 'delete', 'a', '--all'], 'exactly one of the three'],
    [['schedule', 'pause'], 'name schedules, or give --selector or --all'],
  ])('%j', async (words, text) => {
    const before = await countAll();
    const { code, err, out } = await api.longshore(...words);
    expect(err).toContain(text);
    expect(out).toBe('');
    expect(code).toBe(2);
    expect(await countAll()).toBe(before);
  });

  it('a flag without a value takes no name for one', async () => {
    const { code } = await api.longshore('backup', 'create', '--snapshot-move-data', 'named');
    expect(code).toBe(0);
    const backup = await api.client.get(BACKUPS, { namespace: 'velero', name: 'named' });
    expect(specOf(backup)).toMatchObject({ snapshotMoveData: true });
  });

  it.each([
    ...[
      '@every x',
      '@every 500ms',
      '@never',
      '@weekly ',
      '* * * * 8',
      '*/0 * * * *',
      '*/60 * * * *',
    ],
    ...['1- * * * *', 'TZ=No/Where * * * * *', 'TZ=UTC', '', '0 0 30 2 *'],
  ])('a schedule of "%s"', (text) => {
    expect(() => {
      assertCron(text);
    }).toThrow(`--schedule "${text}": `);
  });
  it.each([
    ...['0 2 * * *', '@daily', '@every 1h30m', 'TZ=Europe/Berlin 1,2-9/3 ? */2 JAN mon-fri'],
    ...[
      '0 22-2 * nov-feb fri-mon',
      '0 0 * * 7',
      '1,,2 * * * *',
      '007 +1 * * *',
      '*-5 * * * *',
      '@manual',
    ],
  ])('but none of "%s"', (text) => {
    expect(() => {
      assertCron(text);
    }).not.toThrow();
  });
});

describe('what cannot be created', () => {
  it('a name that is there already: what it is, and what to do', async () => {
    await api.add(BACKUPS, 'twice', { status: { phase: 'PartiallyFailed' } });
    const { code, err } = await api.longshore('backup', 'create', 'twice', '--wait');
    expect(err).toBe(
      'longshore: there is a backup twice already (PartiallyFailed); choose another name, or delete it with "longshore backup delete twice"\n',
    );
    expect(code).toBe(1);
  });

  it.each([
    [['--storage-location', 'nowhere'], 'there is no BackupStorageLocation velero/nowhere'],
    [['--volume-snapshot-locations', 'x'], 'there is no VolumeSnapshotLocation velero/x'],
    [['--from-schedule', 'never'], 'there is no Schedule velero/never'],
  ])('a place or a schedule that there is not: %j', async (flags, text) => {
    const { code, err } = await api.longshore('backup', 'create', 'lost', ...flags);
    expect(err).toContain(text);
    expect(code).toBe(1);
    expect(await api.client.find(BACKUPS, { namespace: 'velero', name: 'lost' })).toBeUndefined();
  });

  it.each([
    [['--from-backup', 'never'], 'there is no Backup velero/never; "longshore backup get" lists'],
    [['--from-schedule', 'never'], 'there is no backup of a schedule "never"'],
  ])('a restore of nothing: %j', async (flags, text) => {
    const { code, err } = await api.longshore('restore', 'create', ...flags);
    expect(err).toContain(text);
    expect(code).toBe(1);
    expect(await api.client.list(RESTORES)).toEqual([]);
  });

  it('in a namespace that there is not', async () => {
    const { code, err } = await api.longshore('backup', 'create', 'a', '-n', 'elsewhere');
    // The last -n counts.
    expect({ code, err }).toEqual({ code: 0, err: '' });
    const words = ['backup', 'create', 'b', '--kubeconfig', api.kubeconfig, '-n', 'elsewhere'];
    const { runHere } = await import('../../../support/command-line.ts');
    const ran = await runHere(...words);
    expect(ran.err).toContain('the cluster has no namespace elsewhere');
    expect(ran.code).toBe(1);
  });
});

it('flags beside --from-schedule that say something else are told to be ignored', async () => {
  await api.add(SCHEDULES, 'nightly', {
    spec: { template: { ttl: '5h0m0s' }, schedule: '@daily' },
  });
  const flags = ['backup', 'create', 'of-nightly', '--from-schedule', 'nightly', '--ttl', '1h'];
  const { code, err, out } = await api.longshore(...flags);
  expect(err).toContain('flags that say something else are ignored');
  expect(out).toContain('backup of-nightly is requested');
  expect(code).toBe(0);
  const backup = await api.client.get(BACKUPS, { namespace: 'velero', name: 'of-nightly' });
  expect(specOf(backup)).toMatchObject({ ttl: '5h0m0s' });
  expect(backup.metadata.labels).toEqual({ 'velero.io/schedule-name': 'nightly' });
});

it('a schedule whose name is too long for a label has backups and restores', async () => {
  const name = 's'.repeat(70);
  await api.add(SCHEDULES, name, { spec: { template: {}, schedule: '@daily' } });
  const made = await api.longshore('backup', 'create', 'of-long', '--from-schedule', name);
  expect([made.err, made.code]).toEqual(['', 0]);
  const { metadata } = await api.client.get(BACKUPS, { namespace: 'velero', name: 'of-long' });
  expect(metadata.labels).toEqual({ 'velero.io/schedule-name': validLabel(name) });
  const restored = await api.longshore('restore', 'create', 'from-long', '--from-schedule', name);
  expect([restored.err, restored.code]).toEqual(['', 0]);
  const restore = await api.client.get(RESTORES, { namespace: 'velero', name: 'from-long' });
  expect(specOf(restore)).toMatchObject({ scheduleName: name });
});

it('a schedule is paused and unpaused, one by one or all of them', async () => {
  const flags = ['schedule', 'create', 'p1', '--schedule', '@daily', '--skip-immediately', 'true'];
  expect((await api.longshore(...flags)).code).toBe(0);
  const read = async (): Promise<unknown> =>
    specOf(await api.client.get(SCHEDULES, { namespace: 'velero', name: 'p1' }));
  const { out, err, code } = await api.longshore('schedule', 'pause', 'p1', 'none');
  expect(out).toBe('schedule p1 is paused\n');
  expect(err).toContain('there is no Schedule velero/none');
  expect(code).toBe(1);
  expect(await read()).toMatchObject({ paused: true });
  expect(await read()).not.toHaveProperty('skipImmediately');
  expect((await api.longshore('schedule', 'pause', '--all')).out).toContain(
    'schedule p1 is paused already',
  );
  await api.longshore('schedule', 'unpause', '--all', '--skip-immediately=false');
  expect(await read()).toMatchObject({ paused: false, skipImmediately: false });
});
