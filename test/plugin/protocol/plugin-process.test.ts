import { spawn } from 'node:child_process';
import { once } from 'node:events';
import * as fs from 'node:fs';
import { connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, expect, it } from 'vitest';
import { makeCertificate } from '../../../src/base/index.ts';
import {
  BACKUP_ITEM_ACTION,
  CONNECTION_INFO,
  DELETE_ITEM_ACTION,
  EMPTY,
  HEALTH_REQUEST,
  HEALTH_RESPONSE,
  ITEM_BLOCK_ACTION,
  LIST_PLUGINS,
  RESTORE_ITEM_ACTION,
  STACK,
  STATUS,
  STDIO_DATA,
} from '../../../src/plugin/protocol/messages.ts';
import { type Decoded, decode } from '../../../src/plugin/protocol/wire.ts';
import {
  type CallFailure,
  HOST,
  PluginClient,
  type PluginProcess,
  startPlugin,
} from '../../support/plugin-client.ts';

const PROGRAM = [process.execPath, join(import.meta.dirname, 'test-plugin.ts')];
const HEALTH = { request: HEALTH_REQUEST, response: HEALTH_RESPONSE };
const SHUTDOWN = { request: EMPTY, response: EMPTY };
const BACKUP = 'test.longshore.io/backup';

const json = (value: unknown): Buffer => Buffer.from(JSON.stringify(value));
const item = (name: string): Buffer => json({ kind: 'Test', metadata: { name } });
const backup = json({ metadata: { name: 'b1', namespace: 'velero' } });

let sockets: string;
const started: PluginProcess[] = [];
const clients: PluginClient[] = [];

beforeEach(() => {
  sockets = fs.mkdtempSync(join(tmpdir(), 'longshore-plugin-'));
});

afterEach(async () => {
  for (const client of clients.splice(0)) client.close();
  for (const plugin of started.splice(0)) {
    plugin.process.kill('SIGKILL');
    await plugin.exit;
  }
  fs.rmSync(sockets, { recursive: true, force: true });
});

async function start(environment: NodeJS.ProcessEnv = {}): Promise<PluginProcess> {
  const plugin = await startPlugin(PROGRAM, {
    ...HOST,
    PLUGIN_UNIX_SOCKET_DIR: sockets,
    ...environment,
  });
  started.push(plugin);
  return plugin;
}

function clientOf(plugin: PluginProcess, tls?: { certificate: string; key: string }): PluginClient {
  if (!plugin.handshake) throw new Error(`no handshake: ${plugin.log.join('\n')}`);
  const client = new PluginClient(plugin.handshake, tls);
  clients.push(client);
  return client;
}

const failureOf = async (call: Promise<unknown>): Promise<CallFailure> => {
  try {
    await call;
  } catch (error) {
    return error as CallFailure;
  }
  throw new Error('the call did not fail');
};

const execute = (client: PluginClient, name: string, plugin = BACKUP): Promise<Decoded> =>
  client.call('/v2.BackupItemAction/Execute', BACKUP_ITEM_ACTION.Execute, {
    plugin,
    item: item(name),
    backup,
  });

it('tells the host where it listens, in the form that go-plugin reads', async () => {
  const { handshake } = await start();
  expect(handshake?.fields).toEqual(['1', '2', 'unix', handshake?.address, 'grpc', '']);
  expect(handshake?.address.startsWith(join(sockets, 'plugin'))).toBe(true);
});

it('answers a seventh field where the host asks for it', async () => {
  const { handshake } = await start({ PLUGIN_MULTIPLEX_GRPC: 'true' });
  expect(handshake?.fields.slice(4)).toEqual(['grpc', '', 'false']);
});

it('refuses to run without the cookie, and with another one', async () => {
  for (const VELERO_PLUGIN of ['', 'goodbye']) {
    const plugin = await start({ VELERO_PLUGIN });
    expect(plugin.handshake).toBeUndefined();
    expect(plugin.log.join('\n')).toContain('this program is a plugin of Velero');
  }
});

it('refuses a host of another protocol, and takes one that offers several', async () => {
  const refused = await start({ PLUGIN_PROTOCOL_VERSIONS: '3,4' });
  expect(refused.handshake).toBeUndefined();
  expect(refused.log.join('\n')).toContain("version 3, 4 of Velero's plugin protocol");
  const taken = await start({ PLUGIN_PROTOCOL_VERSIONS: '1,2' });
  expect(taken.handshake?.fields[1]).toBe('2');
});

it('names a socket path that is too long', async () => {
  const plugin = await start({ PLUGIN_UNIX_SOCKET_DIR: join(sockets, 'x'.repeat(100)) });
  expect(plugin.handshake).toBeUndefined();
  expect(plugin.log.join('\n')).toContain('set TMPDIR to a shorter one');
});

it('lists its actions in the order in which Velero runs them', async () => {
  const client = clientOf(await start());
  const { plugins } = await client.call('/generated.PluginLister/ListPlugins', LIST_PLUGINS, {});
  const command = '/plugins/test-plugin';
  expect(plugins).toEqual([
    { command, kind: 'BackupItemActionV2', name: BACKUP },
    { command, kind: 'RestoreItemActionV2', name: 'test.longshore.io/restore' },
    { command, kind: 'DeleteItemAction', name: 'test.longshore.io/late' },
    { command, kind: 'ItemBlockAction', name: 'test.longshore.io/block' },
  ]);
});

it('says that it is healthy, and knows no other service', async () => {
  const client = clientOf(await start());
  const check = (service: string): Promise<Decoded> =>
    client.call('/grpc.health.v1.Health/Check', HEALTH, { service });
  expect(await check('plugin')).toEqual({ status: 1 });
  expect(await check('other')).toEqual({ status: 3 });
  const watch = client.stream('/grpc.health.v1.Health/Watch', HEALTH);
  const [first] = (await once(watch, 'data')) as [Decoded];
  expect(first).toEqual({ status: 1 });
  watch.on('error', () => undefined);
  watch.cancel();
});

it('keeps broker and output open, as a host opens them', async () => {
  const client = clientOf(await start());
  const broker = { request: EMPTY, response: CONNECTION_INFO };
  const stdio = { request: EMPTY, response: STDIO_DATA };
  const opened = [
    client.stream('/plugin.GRPCBroker/StartStream', broker),
    client.stream('/plugin.GRPCStdio/StreamStdio', stdio),
  ];
  for (const stream of opened) {
    stream.on('error', () => undefined);
    stream.on('data', () => undefined);
    await once(stream, 'metadata');
  }
  expect(await execute(client, 'untouched')).toBeDefined();
  for (const stream of opened) stream.cancel();
});

it('passes items, identifiers and operations on', async () => {
  const client = clientOf(await start());
  const request = { plugin: BACKUP };
  const applies = await client.call(
    '/v2.BackupItemAction/AppliesTo',
    BACKUP_ITEM_ACTION.AppliesTo,
    request,
  );
  expect(applies.selector).toMatchObject({
    includedResources: ['persistentvolumeclaims'],
    selector: 'app=db',
  });
  const { item: updated, ...rest } = await execute(client, 'data');
  expect(JSON.parse((updated as Buffer).toString())).toEqual({
    kind: 'Test',
    metadata: { name: 'data', labels: { backup: 'b1' } },
  });
  expect(rest).toEqual({
    additionalItems: [{ group: '', resource: 'pods', namespace: 'app', name: 'a' }],
    operationId: 'du-1',
    postOperationItems: [
      { group: 'velero.io', resource: 'datauploads', namespace: 'velero', name: 'b' },
    ],
  });
});

it('echoes the bytes of an item that an action leaves alone, also when it skips it', async () => {
  const client = clientOf(await start());
  const answer = await execute(client, 'untouched');
  expect(answer.item).toEqual(item('untouched'));
  const skipped = await client.call('/v2.RestoreItemAction/Execute', RESTORE_ITEM_ACTION.Execute, {
    plugin: 'test.longshore.io/restore',
    item: item('a'),
    itemFromBackup: item('a'),
    restore: backup,
  });
  expect(skipped).toMatchObject({ skipRestore: true, item: item('a') });
});

it('sends counts beyond 32 bits, and year 1 for times that nobody knows', async () => {
  const client = clientOf(await start());
  const ask = (operationId: string): Promise<Decoded> =>
    client.call('/v2.BackupItemAction/Progress', BACKUP_ITEM_ACTION.Progress, {
      plugin: BACKUP,
      operationId,
      backup,
    });
  expect((await ask('done')).progress).toMatchObject({
    completed: true,
    nCompleted: 5_000_000_000_000,
    started: { seconds: Date.parse('2026-11-24T10:00:00Z') / 1000 },
    updated: { seconds: -62_135_596_800 },
  });
  expect((await ask('running')).progress).toMatchObject({
    completed: false,
    started: { seconds: -62_135_596_800 },
  });
  expect((await failureOf(ask(''))).details).toBe('operation ID  is invalid');
});

it('answers for actions without operations with the text that Velero knows', async () => {
  const client = clientOf(await start());
  const plugin = 'test.longshore.io/restore';
  const request = { plugin, operationId: 'x', restore: backup };
  const path = '/v2.RestoreItemAction';
  const failure = await failureOf(
    client.call(`${path}/Progress`, RESTORE_ITEM_ACTION.Progress, request),
  );
  expect(failure).toMatchObject({
    code: 2,
    details: 'Plugin does not support asynchronous operations',
  });
  await client.call(`${path}/Cancel`, RESTORE_ITEM_ACTION.Cancel, request);
  const { AreAdditionalItemsReady } = RESTORE_ITEM_ACTION;
  const ready = await client.call(`${path}/AreAdditionalItemsReady`, AreAdditionalItemsReady, {
    plugin,
    restore: backup,
  });
  expect(ready).toEqual({ ready: true });
});

it('asks for related items', async () => {
  const client = clientOf(await start());
  const answer = await client.call(
    '/v1.ItemBlockAction/GetRelatedItems',
    ITEM_BLOCK_ACTION.GetRelatedItems,
    { plugin: 'test.longshore.io/block', item: item('web'), backup },
  );
  expect(answer.relatedItems).toEqual([
    { group: '', resource: 'pods', namespace: 'app', name: 'web' },
  ]);
});

function stackIn({ metadata }: CallFailure): { file: string; line: number; function: string }[] {
  const [details] = metadata.get('grpc-status-details-bin');
  const { details: parts } = decode(STATUS, details as Buffer);
  const [stack] = parts as { typeUrl: string; value: Buffer }[];
  expect(stack?.typeUrl).toBe('type.googleapis.com/generated.Stack');
  const { frames } = decode(STACK, stack?.value ?? Buffer.alloc(0));
  return frames as { file: string; line: number; function: string }[];
}

it('sends the text and the origin of an error', async () => {
  const failure = await failureOf(execute(clientOf(await start()), 'refused'));
  expect(failure).toMatchObject({ code: 2, details: 'the volume was refused: 5 % of ünits' });
  const [first] = stackIn(failure);
  expect(first?.file.endsWith('/test-plugin.ts')).toBe(true);
  expect(first?.line).toBeGreaterThan(1);
  expect(first?.function).toContain('execute');
});

it('answers a bug as a panic with its stack, and goes on', async () => {
  const client = clientOf(await start());
  const failure = await failureOf(execute(client, 'bug'));
  expect(failure.code).toBe(10);
  expect(failure.details).toMatch(
    /^plugin panicked: Cannot read prop.*, stack trace: .*test-plugin/s,
  );
  expect(stackIn(failure)[0]?.file).toContain('test-plugin.ts');
  expect(await execute(client, 'untouched')).toBeDefined();
});

it('answers open calls when something is thrown that nobody catches, and ends', async () => {
  const plugin = await start();
  const client = clientOf(plugin);
  const failures = await Promise.all([
    failureOf(execute(client, 'slow')),
    failureOf(execute(client, 'uncaught')),
  ]);
  for (const { code, details } of failures) {
    expect({ code, text: details.slice(0, 36) }).toEqual({
      code: 10,
      text: 'plugin panicked: nobody catches this',
    });
  }
  await plugin.exit;
  expect(fs.readdirSync(sockets)).toEqual([]);
});

it('names actions and methods that it does not have', async () => {
  const client = clientOf(await start());
  const unknown = await failureOf(execute(client, 'a', 'velero.io/other'));
  expect(unknown).toMatchObject({
    code: 2,
    details:
      'BackupItemActionV2 plugin: velero.io/other was not found or has an invalid name format',
  });
  const path = '/v3.BackupItemAction/Execute';
  const later = await failureOf(client.call(path, BACKUP_ITEM_ACTION.Execute, {}));
  expect(later.code).toBe(12);
});

it('refuses what is no object and no message', async () => {
  const client = clientOf(await start());
  const path = '/v2.BackupItemAction/Execute';
  const { response } = BACKUP_ITEM_ACTION.Execute;
  for (const sent of ['', 'null', '[]', '{"kind":"Pod"}', '{']) {
    const request = { plugin: BACKUP, item: Buffer.from(sent), backup };
    const failure = await failureOf(client.call(path, BACKUP_ITEM_ACTION.Execute, request));
    expect(failure).toMatchObject({ code: 2 });
    expect(failure.details).toMatch(/the host sent/);
  }
  // A text where the plugin's name is expected, cut short.
  const bytes = { request: { 1: { name: 'raw', type: 'int64' as const } }, response };
  const failure = await failureOf(client.call(path, bytes, { raw: 5 }));
  expect(failure.details).toBe('the message is not valid protobuf: plugin is a number');
});

it('tries again to open an action that could not be opened', async () => {
  const client = clientOf(await start());
  const request = { plugin: 'test.longshore.io/late', item: item('a'), backup };
  const call = (): Promise<Decoded> =>
    client.call('/generated.DeleteItemAction/Execute', DELETE_ITEM_ACTION.Execute, request);
  expect((await failureOf(call())).details).toBe('the cluster is away');
  expect(await call()).toEqual({});
});

it('takes and sends messages of 20 MiB, and refuses those of more than 64', async () => {
  const client = clientOf(await start());
  const padded = (bytes: number): Buffer =>
    json({ metadata: { name: 'data' }, data: 'x'.repeat(bytes) });
  const call = (bytes: number): Promise<Decoded> =>
    client.call('/v2.BackupItemAction/Execute', BACKUP_ITEM_ACTION.Execute, {
      plugin: BACKUP,
      item: padded(bytes),
      backup,
    });
  const { item: updated } = await call(20 << 20);
  expect((updated as Buffer).length).toBeGreaterThan(20 << 20);
  const failure = await failureOf(call(65 << 20));
  expect(failure).toMatchObject({ code: 8 });
  expect(await execute(client, 'untouched')).toBeDefined();
});

it('answers a hundred calls side by side', async () => {
  const client = clientOf(await start());
  const answers = await Promise.all(
    Array.from({ length: 100 }, (_, i) => execute(client, `v${i}`)),
  );
  expect(answers.map(({ operationId }) => operationId)).toEqual(Array(100).fill('du-1'));
});

it('ends when the host asks for it, answers first, and leaves no socket', async () => {
  const plugin = await start();
  await clientOf(plugin).call('/plugin.GRPCController/Shutdown', SHUTDOWN, {});
  expect(await plugin.exit).toBe(0);
  expect(fs.readdirSync(sockets)).toEqual([]);
});

it('tells an action that the host no longer waits', async () => {
  const plugin = await start();
  const client = clientOf(plugin);
  const call = client.call(
    '/v2.BackupItemAction/Execute',
    BACKUP_ITEM_ACTION.Execute,
    { plugin: BACKUP, item: item('slow'), backup },
    { deadline: Date.now() + 500 },
  );
  expect((await failureOf(call)).code).toBe(4);
  await expect.poll(() => plugin.log.join('\n')).toContain('execute was given up');
});

it('ends when its host has died, and leaves nothing behind', async () => {
  // The host is a process of its own, which starts the plugin and dies without a word.
  const code = `
    const { spawn } = require('node:child_process');
    const plugin = spawn(${JSON.stringify(PROGRAM[0])}, ${JSON.stringify(PROGRAM.slice(1))}, { stdio: ['ignore', 'pipe', 'ignore'] });
    plugin.stdout.once('data', (line) => console.log(plugin.pid + ' ' + line));
    setInterval(() => undefined, 1000);`;
  const host = spawn(process.execPath, ['-e', code], {
    env: { ...process.env, ...HOST, PLUGIN_UNIX_SOCKET_DIR: sockets },
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const [text] = (await once(host.stdout, 'data')) as [Buffer];
  const pid = Number(text.toString().split(' ')[0]);
  expect(fs.readdirSync(sockets)).toHaveLength(1);
  host.kill('SIGKILL');
  await expect.poll(() => fs.existsSync(`/proc/${pid}/exe`), { timeout: 10_000 }).toBe(false);
  expect(fs.readdirSync(sockets)).toEqual([]);
});

it('serves a host that connects anew', async () => {
  const plugin = await start();
  const client = clientOf(plugin);
  await execute(client, 'untouched');
  client.close();
  clients.length = 0;
  expect(await execute(clientOf(plugin), 'untouched')).toBeDefined();
});

it('speaks TLS where the host sends a certificate, and only with that host', async () => {
  const own = makeCertificate(Date.now(), 'host');
  const plugin = await start({ PLUGIN_CLIENT_CERT: own.certificate });
  expect(plugin.handshake?.certificate.length).toBeGreaterThan(50);
  expect(await execute(clientOf(plugin, own), 'untouched')).toBeDefined();
  const stranger = makeCertificate(Date.now(), 'stranger');
  const path = '/v2.BackupItemAction/AppliesTo';
  const { AppliesTo } = BACKUP_ITEM_ACTION;
  const deadline = Date.now() + 3000;
  const call = clientOf(plugin, stranger).call(path, AppliesTo, { plugin: BACKUP }, { deadline });
  expect([4, 14]).toContain((await failureOf(call)).code);
  const plain = connect(plugin.handshake?.address ?? '');
  plain.on('error', () => undefined);
  plain.write('PRI * HTTP/2.0');
  await once(plain, 'close');
});
