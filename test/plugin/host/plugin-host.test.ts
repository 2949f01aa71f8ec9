import * as http2 from 'node:http2';
import * as fs from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { afterAll, afterEach, beforeAll, expect, it, vi } from 'vitest';
import { type Logger, messageOf } from '../../../src/base/index.ts';
import type { KubeObject } from '../../../src/kube/index.ts';
import { type HostOptions, type Plugin, PluginHost } from '../../../src/plugin/index.ts';
import { backupOf, restoreOf } from '../../support/plugin-items.ts';
import { GrpcClient } from '../../../src/plugin/host/grpc-client.ts';
import { hostFlags } from '../../../src/cli/plugin/flags.ts';

const OURS = join(import.meta.dirname, '../protocol/test-plugin.ts');
const OTHERS = join(import.meta.dirname, 'other-plugin.ts');
const BACKUP = backupOf('b1');
const NEVER = { signal: new AbortController().signal };
const MEMORY = 'other.example.io/memory';

interface Line {
  readonly level: string;
  readonly fields: Readonly<Record<string, unknown>>;
  readonly message: string;
}
function memoryLogger(): { logger: Logger; lines: Line[] } {
  const lines: Line[] = [];
  const at =
    (level: string) =>
    (fields: object, message: string): void => {
      lines.push({ level, fields: { ...fields }, message });
    };
  const logger = { debug: at('debug'), info: at('info'), warn: at('warn'), error: at('error') };
  return { logger, lines };
}

let folder: string;
const hosts: PluginHost[] = [];

beforeAll(() => {
  folder = fs.mkdtempSync(join(tmpdir(), 'longshore-host-'));
});
afterEach(async () => {
  for (const host of hosts.splice(0)) await host.close();
  expect(childrenOfThis()).toEqual([]);
});
afterAll(() => fs.rmSync(folder, { recursive: true, force: true }));

/** Processes of plugins; whatever else vitest runs has another command line. */
function childrenOfThis(): string[] {
  const tasks = `/proc/${process.pid}/task`;
  return fs
    .readdirSync(tasks)
    .flatMap((task) => fs.readFileSync(`${tasks}/${task}/children`, 'utf8').split(' '))
    .filter(Boolean)
    .map((pid) => {
      try {
        return fs.readFileSync(`/proc/${pid}/cmdline`, 'utf8').replaceAll('\0', ' ');
      } catch {
        return '';
      }
    })
    .filter((command) => /plugin|sleep/.test(command));
}

/** A folder of scripts by their names. */
let folders = 0;
function folderOf(scripts: Readonly<Record<string, string>>): string {
  const path = join(folder, String(folders++));
  for (const [name, script] of Object.entries(scripts)) {
    const file = join(path, name);
    fs.mkdirSync(join(file, '..'), { recursive: true });
    fs.writeFileSync(file, `#!/bin/sh\n${script}\n`, { mode: 0o755 });
  }
  return path;
}
const starting = (program: string): string => `exec "${process.execPath}" "${program}" "$@"`;

async function open(
  scripts: Readonly<Record<string, string>>,
  options: Partial<HostOptions> = {},
): Promise<PluginHost> {
  const host = await PluginHost.open({
    folder: folderOf(scripts),
    flags: ['--log-level', 'debug'],
    environment: { PATH: process.env.PATH, TMPDIR: folder, PLUGIN_SOCKETS: folder },
    logger: memoryLogger().logger,
    ...options,
  });
  hosts.push(host);
  return host;
}

const item = (name: string): KubeObject => ({ kind: 'Pod', metadata: { name } }) as KubeObject;

const failure = async (task: Promise<unknown>): Promise<{ code: string; message: string }> => {
  try {
    await task;
  } catch (error) {
    return { code: (error as { code?: string }).code ?? '', message: messageOf(error) };
  }
  throw new Error('no failure');
};

it('runs actions of every kind in the order of their files and of their kinds', async () => {
  const host = await open({ 'b/ours': starting(OURS), 'a-others': starting(OTHERS) });
  expect(host.problems).toEqual([]);
  expect(host.plugins.map(({ kind, name }) => `${kind} ${name}`)).toEqual([
    'ObjectStore other.example.io/memory',
    'BackupItemAction other.example.io/first',
    'BackupItemActionV2 test.longshore.io/backup',
    'RestoreItemActionV2 test.longshore.io/restore',
    'DeleteItemAction test.longshore.io/late',
    'ItemBlockAction test.longshore.io/block',
  ]);
  await using manager = host.manager(memoryLogger().logger);
  const [first, second, ...rest] = manager.backupItemActions();
  expect(rest).toEqual([]);
  expect(await first?.appliesTo(NEVER)).toMatchObject({ includedResources: ['pods'] });
  expect(await second?.appliesTo(NEVER)).toEqual({
    includedNamespaces: [],
    excludedNamespaces: [],
    includedResources: ['persistentvolumeclaims'],
    excludedResources: [],
    selector: 'app=db',
  });
  expect(await second?.action.execute(item('a'), BACKUP, NEVER)).toEqual({
    item: { kind: 'Pod', metadata: { name: 'a', labels: { backup: 'b1' } } },
    additionalItems: [{ group: '', resource: 'pods', namespace: 'app', name: 'a' }],
    operationId: 'du-1',
    postOperationItems: [
      { group: 'velero.io', resource: 'datauploads', namespace: 'velero', name: 'b' },
    ],
  });
  expect(await second?.action.progress('done', BACKUP, NEVER)).toMatchObject({
    completed: true,
    nTotal: 5_000_000_000_000,
    started: '2026-11-24T10:00:00Z',
    updated: undefined,
  });
  const restore = manager.restoreItemAction('test.longshore.io/restore');
  const input = { item: item('a'), itemFromBackup: item('a'), restore: restoreOf('r', 'b1') };
  expect(await restore.action.execute(input, NEVER)).toMatchObject({
    item: item('a'),
    skipRestore: true,
    operationId: '',
  });
  expect(await restore.action.areAdditionalItemsReady([], input.restore, NEVER)).toBe(true);
  expect((await failure(restore.action.progress('x', input.restore, NEVER))).code).toBe(
    'NO_OPERATIONS',
  );
  const block = manager.itemBlockAction('test.longshore.io/block');
  expect(await block.action.relatedItems(item('p'), BACKUP, NEVER)).toMatchObject([{ name: 'p' }]);
  const late = manager.deleteItemAction('test.longshore.io/late');
  expect(await failure(late.action.execute(item('a'), BACKUP, NEVER))).toEqual({
    code: 'PLUGIN_REFUSED',
    message: 'the cluster is away',
  });
  await late.action.execute(item('a'), BACKUP, NEVER);
});

it('uses an action of version 1 as one of version 2 without operations', async () => {
  const host = await open({ others: starting(OTHERS) });
  await using manager = host.manager(memoryLogger().logger);
  const { action } = manager.backupItemAction('other.example.io/first');
  expect(await action.execute(item('a'), BACKUP, NEVER)).toEqual({
    item: item('a'),
    additionalItems: [],
    operationId: '',
    postOperationItems: [],
  });
  expect((await failure(action.progress('x', BACKUP, NEVER))).code).toBe('NO_OPERATIONS');
  await action.cancel('x', BACKUP, NEVER);
});

it('loads what it can of a folder, and names every file that it cannot', async () => {
  const other = JSON.stringify([
    { kind: 'FutureAction', name: 'other.example.io/future' },
    { kind: 'ObjectStore', name: 'no-slash' },
  ]);
  const { logger, lines } = memoryLogger();
  const path = folderOf({
    crashes: 'echo "[ERROR] no configuration" >&2; exit 3',
    good: starting(OURS),
    'good-twice': starting(OURS),
    netrpc: 'echo "1|2|unix|/nowhere"; exec sleep 60',
    newer: 'echo "1|3|unix|/nowhere|grpc"; exec sleep 60',
    'nobody-listens': 'echo "1|2|unix|/nowhere|grpc"; exec sleep 60',
    other: `export OTHER_PLUGIN_LISTS='${other}'; ${starting(OTHERS)}`,
    silent: 'exec true',
    talks: 'echo "Usage: talks [FILE]"; exec sleep 60',
  });
  fs.writeFileSync(join(path, 'README'), 'not a program');
  fs.writeFileSync(join(path, 'interpreter'), '#!/no/such/interpreter\n', { mode: 0o755 });
  fs.writeFileSync(join(path, 'wrong-kind'), '\x7fELF and nothing else', { mode: 0o755 });
  const host = await PluginHost.open({
    folder: path,
    flags: [],
    environment: { PATH: process.env.PATH, TMPDIR: folder, PLUGIN_SOCKETS: folder },
    logger,
  });
  hosts.push(host);
  expect(host.plugins.map(({ name }) => name)).toEqual([
    'test.longshore.io/backup',
    'test.longshore.io/restore',
    'test.longshore.io/late',
    'test.longshore.io/block',
    'other.example.io/memory',
    'other.example.io/first',
  ]);
  const told = host.problems.map(({ file, error }) => {
    expect(error.message).toContain(file);
    return messageOf(error).replaceAll(path, '');
  });
  const duplicate = (kind: string, name: string): string =>
    `${kind} test.longshore.io/${name} is in two files: /good, which is used, and /good-twice, which is not. Remove one of them`;
  const starts = [
    'plugin /crashes cannot be used: it ended with code 3 before its handshake; its last lines: [ERROR] no configuration',
    duplicate('BackupItemActionV2', 'backup'),
    duplicate('RestoreItemActionV2', 'restore'),
    duplicate('DeleteItemAction', 'late'),
    duplicate('ItemBlockAction', 'block'),
    'plugin /interpreter cannot be started: spawn /interpreter ENOENT. The file, or the interpreter it names, is missing',
    'plugin /netrpc cannot be used: it speaks netrpc, not gRPC',
    "plugin /newer cannot be used: it speaks version 3 of Velero's plugin protocol, not 2",
    'plugin /nobody-listens cannot be used: cannot connect: connect ENOENT /nowhere',
    'plugin other.example.io/future of /other is of kind FutureAction, which this server does not know: it is left out. A newer server may know it',
    'the name no-slash of a ObjectStore in /other is not of the form example.io/name: it is left out',
    'plugin /silent cannot be used: it ended with code 0 before its handshake',
    'plugin /talks cannot be used: it is no plugin of Velero: its first line is no handshake but "Usage: talks [FILE]"',
  ];
  expect(told.slice(0, -1)).toEqual(starts);
  expect(told.at(-1)).toMatch(/^plugin \/wrong-kind cannot be used: it ended with code 127 /);
  const errors = lines.filter(({ level, fields }) => level === 'error' && 'file' in fields);
  expect(errors.map(({ fields }) => fields.file)).toEqual(host.problems.map(({ file }) => file));
  expect(lines).toContainEqual({
    level: 'warn',
    fields: { file: join(path, 'README') },
    message: 'this file of the plugin folder is skipped: it is not executable',
  });
});

it("reads the server's features as Velero does", () => {
  const hasCsi = (...flags: string[]): boolean => hostFlags(flags).hasCsi;
  expect(hasCsi('--features=Other,EnableCSI')).toBe(true);
  expect(hasCsi('--features=Other', '--features', 'EnableCSI')).toBe(true);
  expect(hasCsi('--features=EnableCSI', '--features=Other')).toBe(false);
  expect(hasCsi('--features=Other, EnableCSI')).toBe(false);
});

it('does not wait for a program that hangs', async () => {
  const host = await open({ hangs: 'exec sleep 60' }, { startMsMax: 1000 });
  expect(host.problems.map(({ error }) => error.message)).toEqual([
    expect.stringMatching(/hangs cannot be used: it did not answer within 1 s of its start$/),
  ]);
});

it('has no plugins without a folder, and says so where there is another file', async () => {
  const options = { flags: [], environment: {}, logger: memoryLogger().logger };
  const host = await PluginHost.open({ ...options, folder: join(folder, 'nowhere') });
  expect(host.plugins).toEqual([]);
  fs.writeFileSync(join(folder, 'file'), '');
  const error = await failure(PluginHost.open({ ...options, folder: join(folder, 'file') }));
  expect(error.code).toBe('PLUGIN_FOLDER');
  await using manager = host.manager(options.logger);
  expect(() => manager.objectStore('aws', {})).toThrow(
    'there is no ObjectStore plugin velero.io/aws: is its file in the plugin folder, and did it load?',
  );
});

it('runs actions of its own program beside those of files, which cannot take their names', async () => {
  let opened = 0;
  const builtIn: Plugin[] = [
    {
      kind: 'BackupItemActionV2',
      name: 'test.longshore.io/backup',
      appliesTo: { includedResources: ['secrets'] },
      open: () => {
        opened++;
        return Promise.resolve({ execute: () => Promise.resolve({ operationId: 'own' }) });
      },
    },
  ];
  const host = await open({ ours: starting(OURS) }, { builtIn });
  expect(host.problems.map(({ error }) => error.message)).toEqual([
    expect.stringContaining('is in two files: this program, which is used, and /') as string,
  ]);
  await using manager = host.manager(memoryLogger().logger);
  const own = manager.backupItemAction('test.longshore.io/backup');
  expect(await own.appliesTo(NEVER)).toEqual({ includedResources: ['secrets'] });
  expect(await own.action.execute(item('a'), BACKUP, NEVER)).toEqual({ operationId: 'own' });
  // The action is opened again by its name, and keeps its state of all operations.
  const again = manager.backupItemAction('test.longshore.io/backup');
  expect((await failure(again.action.progress('own', BACKUP, NEVER))).code).toBe('NO_OPERATIONS');
  expect(opened).toBe(1);
});

it('actions of its own program log where the manager says, so that a backup counts it', async () => {
  const builtIn: Plugin[] = [
    {
      kind: 'BackupItemActionV2',
      name: 'test.longshore.io/says',
      appliesTo: {},
      open: (logger) =>
        Promise.resolve({
          execute: () => {
            logger?.warn({}, 'said of this backup');
            return Promise.resolve({});
          },
        }),
    },
  ];
  const host = await open({}, { builtIn });
  const said = [];
  for (let backup = 0; backup < 2; backup++) {
    const { logger, lines } = memoryLogger();
    await using manager = host.manager(logger);
    await manager
      .backupItemAction('test.longshore.io/says')
      .action.execute(item('a'), BACKUP, NEVER);
    said.push(lines.length);
  }
  expect(said).toEqual([1, 1]);
});

it("tells a plugin's errors by their texts, and where they were thrown", async () => {
  const host = await open({ ours: starting(OURS), others: starting(OTHERS) });
  await using manager = host.manager(memoryLogger().logger);
  const { action } = manager.backupItemAction('test.longshore.io/backup');
  const refused = await action
    .execute(item('refused'), BACKUP, NEVER)
    .catch((error: unknown) => error);
  expect(refused).toMatchObject({
    code: 'PLUGIN_REFUSED',
    message: 'the volume was refused: 5 % of ünits',
    facts: { grpcCode: 2, 'error.file': expect.stringMatching(/test-plugin\.ts:\d+$/) as string },
  });
  const bug = await failure(action.execute(item('bug'), BACKUP, NEVER));
  expect(bug.message).toMatch(/^plugin panicked: .*undefined/);
  expect(await failure(action.progress('', BACKUP, NEVER))).toEqual({
    code: 'BAD_OPERATION_ID',
    message: 'operation ID  is invalid',
  });
  const other = manager.backupItemAction('other.example.io/first').action;
  expect((await failure(other.execute(item('no-json'), BACKUP, NEVER))).message).toMatch(
    /^what BackupItemAction other\.example\.io\/first of plugin .*others sent as item is no JSON: /,
  );
  const large = { ...item('large'), data: 'x'.repeat(5 << 20) } as KubeObject;
  const tooLarge = await failure(other.execute(large, BACKUP, NEVER));
  expect(tooLarge.code).toBe('PLUGIN_MESSAGE');
  expect(tooLarge.message).toMatch(/does not take the message of Execute: .*take 4 MiB/);
});

it('starts a process that died again for the next call, and asks nothing twice', async () => {
  const host = await open({ ours: starting(OURS), others: starting(OTHERS) });
  await using manager = host.manager(memoryLogger().logger);
  const { action } = manager.backupItemAction('other.example.io/first');
  const gone = await failure(action.execute(item('die'), BACKUP, NEVER));
  expect(gone.code).toBe('PLUGIN_GONE');
  expect(gone.message).toMatch(/others ended by SIGKILL while it was asked for Execute$/);
  expect(await action.execute(item('a'), BACKUP, NEVER)).toMatchObject({ item: item('a') });
  // An uncaught error fails the call, and ends the process.
  const ours = manager.backupItemAction('test.longshore.io/backup').action;
  const uncaught = await failure(ours.execute(item('uncaught'), BACKUP, NEVER));
  expect(uncaught.message).toMatch(/^plugin panicked: nobody catches this/);
  expect(await ours.execute(item('untouched'), BACKUP, NEVER)).toMatchObject({
    item: item('untouched'),
  });
});

it('gives up on a program after eleven failed starts in a row', async () => {
  const marker = join(folder, 'broken');
  const starts = join(folder, 'starts');
  const script = `echo x >> "${starts}"; [ -e "${marker}" ] && exit 7; ${starting(OTHERS)}`;
  const host = await open({ others: script });
  fs.writeFileSync(marker, '');
  await using manager = host.manager(memoryLogger().logger);
  const { action } = manager.backupItemAction('other.example.io/first');
  for (let i = 0; i < 11; i++) {
    expect((await failure(action.execute(item('a'), BACKUP, NEVER))).code).toBe('PLUGIN_START');
  }
  const last = await failure(action.execute(item('a'), BACKUP, NEVER));
  expect(last.code).toBe('PLUGIN_RESTARTS');
  expect(last.message).toMatch(
    /failed to start 11 times in a row and is not started again: .*code 7/,
  );
  expect(fs.readFileSync(starts, 'utf8').split('\n').length - 1).toBe(12);
});

it('takes the log of its plugins over with level and fields, and counts errors and warnings', async () => {
  const host = await open({ others: starting(OTHERS) });
  const { logger, lines } = memoryLogger();
  await using manager = host.manager(logger);
  const { action } = manager.backupItemAction('other.example.io/first');
  await action.execute(item('logs'), BACKUP, NEVER);
  await expect.poll(() => lines.length).toBe(7);
  const fields = { cmd: expect.stringMatching(/\/others$/) as string, pluginName: 'others' };
  expect(lines.slice(0, 5)).toEqual([
    { level: 'warn', fields: { ...fields, step: 'x' }, message: 'a warning' },
    { level: 'error', fields: { ...fields, step: 'x' }, message: 'an error' },
    { level: 'debug', fields, message: 'plain text' },
    { level: 'warn', fields, message: '[WARN] with a level' },
    { level: 'debug', fields, message: '{"@level":"loud","@message":"?"}' },
  ]);
  expect(lines.slice(5).map(({ message }) => message.length)).toEqual([65_536, 70_000 - 65_536]);
  expect(manager.logged).toEqual({ errors: 1, warnings: 2 });
});

it('ends a call when its caller gives up, and tells the plugin', async () => {
  const host = await open({ ours: starting(OURS) });
  const { logger, lines } = memoryLogger();
  await using manager = host.manager(logger);
  const { action } = manager.backupItemAction('test.longshore.io/backup');
  const controller = new AbortController();
  const slow = action.execute(item('slow'), BACKUP, { signal: controller.signal });
  await expect
    .poll(() => lines.map(({ message }) => message), { timeout: 10_000 })
    .toContain('execute started');
  controller.abort(new Error('no longer wanted'));
  expect((await failure(slow)).message).toBe('no longer wanted');
  await expect.poll(() => lines.map(({ message }) => message)).toContain('execute was given up');
});

it('ends a call that the plugin does not answer in time', async () => {
  const host = await open({ ours: starting(OURS) }, { callMsMax: 1000 });
  await using manager = host.manager(memoryLogger().logger);
  const { action } = manager.backupItemAction('test.longshore.io/backup');
  const late = await failure(action.execute(item('slow'), BACKUP, NEVER));
  expect(late.code).toBe('PLUGIN_TIMEOUT');
  expect(late.message).toMatch(/\/ours gave no answer within 1 s to Execute$/);
});

it('keeps a process until its operations are over, and asks that one about them', async () => {
  const host = await open({ ours: starting(OURS) });
  const manager = host.manager(memoryLogger().logger);
  const { action } = manager.backupItemAction('test.longshore.io/backup');
  expect(await action.execute(item('a'), BACKUP, NEVER)).toMatchObject({ operationId: 'du-1' });
  await manager.close();
  expect(childrenOfThis()).toHaveLength(1);
  expect((await failure(action.execute(item('a'), BACKUP, NEVER))).code).toBe('PLUGINS_CLOSED');

  await using later = host.manager(memoryLogger().logger);
  const again = later.backupItemAction('test.longshore.io/backup').action;
  expect(await again.progress('du-1', BACKUP, NEVER)).toMatchObject({ completed: false });
  expect(childrenOfThis()).toHaveLength(1);
  await again.cancel('du-1', BACKUP, NEVER);
  await expect.poll(childrenOfThis).toHaveLength(0);
  // Its process is gone; another one answers.
  expect(await again.progress('du-1', BACKUP, NEVER)).toMatchObject({ completed: false });
});

it('ends a process whose operations nobody asks about any more', async () => {
  const host = await open({ ours: starting(OURS) }, { keptMsMax: 200 });
  const manager = host.manager(memoryLogger().logger);
  const { action } = manager.backupItemAction('test.longshore.io/backup');
  await action.execute(item('a'), BACKUP, NEVER);
  await manager.close();
  expect(childrenOfThis()).toHaveLength(1);
  await expect.poll(childrenOfThis).toHaveLength(0);
});

it('ends every process when it is closed, also those that do not end by themselves', async () => {
  const host = await open({
    ours: starting(OURS),
    others: `export OTHER_PLUGIN_STAYS=1; ${starting(OTHERS)}`,
  });
  const manager = host.manager(memoryLogger().logger);
  const ours = manager.backupItemAction('test.longshore.io/backup').action;
  await ours.execute(item('a'), BACKUP, NEVER);
  const store = manager.objectStore(MEMORY, {});
  await store.exists('b', 'x', NEVER);
  // A call that is never answered.
  const hanging = failure(store.delete('b', 'x', NEVER));
  await sleep(50);
  await host.close();
  expect((await hanging).code).toBe('PLUGIN_GONE');
  expect(childrenOfThis()).toEqual([]);
});

it('configures an object store once in each process, and has a process for each configuration', async () => {
  const host = await open({ others: starting(OTHERS) });
  await using manager = host.manager(memoryLogger().logger);
  const a = manager.objectStore(MEMORY, { bucket: 'a', prefix: '' });
  const b = manager.objectStore(MEMORY, { bucket: 'b' });
  const [first, again] = await Promise.all([a.list('a', '', NEVER), a.list('a', '', NEVER)]);
  expect(first).toEqual(again);
  expect(first?.slice(1)).toEqual([
    '1',
    '[{"key":"bucket","value":"a"},{"key":"prefix","value":""}]',
  ]);
  const other = await b.list('b', '', NEVER);
  expect(other[0]).not.toBe(first[0]);
  expect(other[2]).toBe('[{"key":"bucket","value":"b"}]');
  process.kill(Number(first[0]), 'SIGKILL');
  await expect.poll(childrenOfThis).toHaveLength(1);
  // Its end is seen a moment later.
  const anew = await vi.waitFor(() => a.list('a', '', NEVER), { timeout: 20_000 });
  expect(anew[0]).not.toBe(first[0]);
  expect(anew.slice(1)).toEqual(first.slice(1));

  const nowhere = manager.objectStore(MEMORY, { region: 'nowhere' });
  const refused = { code: 'PLUGIN_REFUSED', message: 'there is no region nowhere' };
  expect(await failure(nowhere.exists('b', 'x', NEVER))).toEqual(refused);
  expect(await failure(nowhere.exists('b', 'x', NEVER))).toEqual(refused);
});

it('puts and gets objects of any size, also an empty one', async () => {
  const host = await open({ others: starting(OTHERS) });
  await using manager = host.manager(memoryLogger().logger);
  const store = manager.objectStore(MEMORY, {});
  for (const size of [0, 1, 65_536, 200_001]) {
    const body = Buffer.alloc(size, size % 251);
    await store.put('b', `of ${size}`, [body.subarray(0, 1), body.subarray(1)], NEVER);
    const parts: Uint8Array[] = [];
    for await (const part of store.get('b', `of ${size}`, NEVER)) parts.push(part);
    expect(Buffer.concat(parts).equals(body)).toBe(true);
  }
});

it('ends the transfer of an object when its reader stops, fails, or gives up', async () => {
  const host = await open({ others: starting(OTHERS) });
  const { logger, lines } = memoryLogger();
  await using manager = host.manager(logger);
  const store = manager.objectStore(MEMORY, {});
  for await (const part of store.get('b', 'endless', NEVER)) {
    expect(part).toHaveLength(16_384);
    // A reader that takes nothing: the plugin has to wait, and memory has a bound.
    await sleep(300);
    break;
  }
  const cancelled = (): string[] =>
    lines.map(({ message }) => message).filter((message) => message.includes('get was cancelled'));
  await expect.poll(cancelled).toHaveLength(1);
  expect(Number(/\d+/.exec(cancelled()[0] ?? '')?.[0])).toBeLessThan(400);

  const controller = new AbortController();
  const read = async (): Promise<void> => {
    await Array.fromAsync(store.get('b', 'stall', { signal: controller.signal }));
  };
  const reading = failure(read());
  setTimeout(() => controller.abort(new Error('enough')), 100);
  expect((await reading).message).toBe('enough');
  await expect.poll(cancelled).toHaveLength(2);
});

it('says why an object breaks off, and never takes a part for the whole', async () => {
  const host = await open({ others: starting(OTHERS) }, { streamMsMax: 1000 });
  await using manager = host.manager(memoryLogger().logger);
  const store = manager.objectStore(MEMORY, {});
  const readAll = async (key: string): Promise<void> => {
    await Array.fromAsync(store.get('b', key, NEVER));
  };
  expect(await failure(readAll('fails'))).toEqual({
    code: 'PLUGIN_REFUSED',
    message: 'the disk is broken',
  });
  const died = await failure(readAll('die'));
  expect(died.code).toBe('PLUGIN_GONE');
  expect(died.message).toMatch(/ended by SIGKILL while it was asked for GetObject$/);
  expect((await failure(readAll('stall'))).code).toBe('PLUGIN_TIMEOUT');
});

it('resets a put whose body breaks off, so that the plugin does not store a part for the whole', async () => {
  const host = await open({ others: starting(OTHERS) });
  const { logger, lines } = memoryLogger();
  await using manager = host.manager(logger);
  const store = manager.objectStore(MEMORY, {});
  const told = (text: string): string[] =>
    lines.map(({ message }) => message).filter((message) => message.includes(text));
  async function* broken(): AsyncGenerator<Uint8Array> {
    yield Buffer.alloc(100_000);
    await sleep(50);
    throw new Error('the disk is broken');
  }
  expect((await failure(store.put('b', 'broken', broken(), NEVER))).message).toBe(
    'the disk is broken',
  );
  await expect.poll(() => told('put was cancelled')).toHaveLength(1);
  // `close` of Node's stream would end the sending side first.
  expect(told('put has ended')).toEqual([]);
  await store.put('b', 'whole', [Buffer.from('x')], NEVER);
  await expect.poll(() => told('put has ended')).toHaveLength(1);
});

it('stops to read a body that the plugin refuses, does not take, or dies of', async () => {
  const host = await open({ others: starting(OTHERS) }, { streamMsMax: 1000 });
  await using manager = host.manager(memoryLogger().logger);
  const store = manager.objectStore(MEMORY, {});
  let made = 0;
  let left = 0;
  async function* endless(): AsyncGenerator<Uint8Array> {
    try {
      for (;;) {
        made++;
        yield Buffer.alloc(65_536);
        await sleep(0);
      }
    } finally {
      left++;
    }
  }
  expect(await failure(store.put('b', 'refused', endless(), NEVER))).toEqual({
    code: 'PLUGIN_REFUSED',
    message: 'the bucket is read-only',
  });
  expect((await failure(store.put('b', 'die', endless(), NEVER))).code).toBe('PLUGIN_GONE');
  made = 0;
  expect((await failure(store.put('b', 'stall', endless(), NEVER))).code).toBe('PLUGIN_TIMEOUT');
  // The limit is the size of the connection's windows.
  expect(made).toBeLessThan(40);
  await expect.poll(() => left).toBe(3);

  // The stream stalls, and no caller waits for it.
  async function* stuck(): AsyncGenerator<Uint8Array> {
    yield Buffer.alloc(10);
    await new Promise(() => undefined);
  }
  expect((await failure(store.put('b', 'refused', stuck(), NEVER))).code).toBe('PLUGIN_REFUSED');
  async function* broken(): AsyncGenerator<Uint8Array> {
    yield Buffer.alloc(10);
    await sleep(1);
    throw new Error('the archive could not be written');
  }
  expect((await failure(store.put('b', 'x', broken(), NEVER))).message).toBe(
    'the archive could not be written',
  );
});

/** A server of one socket, whose calls are answered by `answer`, and a client of it. */
async function serving(
  name: string,
  answer: (stream: http2.ServerHttp2Stream, path: string) => void,
  use: (client: GrpcClient) => Promise<void>,
): Promise<void> {
  const socket = join(folder, `${name}.sock`);
  const server = http2.createServer();
  server.on('stream', (stream, headers) => {
    stream.on('error', () => undefined);
    answer(stream, headers[':path'] ?? '');
  });
  await new Promise<void>((resolve) => server.listen(socket, resolve));
  const client = await GrpcClient.connect({ path: socket }, 2000);
  try {
    await use(client);
  } finally {
    client.close();
    server.close();
  }
}
const GRPC = { ':status': 200, 'content-type': 'application/grpc' };
const ONE_BYTE = Buffer.from([0, 0, 0, 0, 1, 120]);

it('refuses a second answer to a call that has one', async () => {
  const many = (stream: http2.ServerHttp2Stream): void => {
    stream.respond(GRPC);
    const timer = setInterval(() => stream.write(ONE_BYTE), 50);
    stream.on('close', () => clearInterval(timer));
  };
  await serving('many', many, async (client) => {
    await expect(client.unary('/many', Buffer.alloc(1), { waitMsMax: 500 })).rejects.toThrow(
      'the plugin sent more than one answer',
    );
  });
});

it('ends a call at its status, also where the plugin never takes the rest of the request', async () => {
  const resets: string[] = [];
  const early = (stream: http2.ServerHttp2Stream, path: string): void => {
    // Else Node resets a stream that nobody reads, as servers in Go do.
    stream.pause();
    stream.on('close', () => resets.push(path));
    if (path === '/refused-at-once') {
      stream.respond({ ...GRPC, 'grpc-status': '7', 'grpc-message': 'no' }, { endStream: true });
      return;
    }
    stream.respond(GRPC, { waitForTrailers: true });
    const status = path === '/refused' ? { 'grpc-status': '7', 'grpc-message': 'no' } : {};
    stream.on('wantTrailers', () => stream.sendTrailers({ 'grpc-status': '0', ...status }));
    stream.end(path === '/refused' ? undefined : ONE_BYTE);
  };
  await serving('early', early, async (client) => {
    const options = { waitMsMax: 60_000 };
    const large = Buffer.alloc(10 << 20);
    expect((await client.unary('/granted', large, options)).toString()).toBe('x');
    await expect(client.unary('/refused', large, options)).rejects.toThrow('no');
    await expect(client.unary('/refused-at-once', large, options)).rejects.toThrow('no');
    const read: string[] = [];
    for await (const message of client.read('/stream', large, options)) {
      read.push(message.toString());
    }
    expect(read).toEqual(['x']);
    await expect
      .poll(() => resets)
      .toEqual(['/granted', '/refused', '/refused-at-once', '/stream']);
  });
});

it('ends a put at its status, also where it is all sent and the plugin does not take it', async () => {
  const late = (stream: http2.ServerHttp2Stream): void => {
    stream.pause();
    stream.respond(GRPC, { waitForTrailers: true });
    stream.on('wantTrailers', () => stream.sendTrailers({ 'grpc-status': '0' }));
    setTimeout(() => stream.end(ONE_BYTE), 100);
  };
  await serving('late', late, async (client) => {
    async function* once(): AsyncGenerator<Buffer[]> {
      await sleep(0);
      yield [Buffer.alloc(10 << 20)];
    }
    const answer = await client.write('/late', once(), { waitMsMax: 60_000 });
    expect(answer.toString()).toBe('x');
  });
});
