/**
 * A plugin of another author, with another implementation of gRPC. Started by
 * `plugin-host.test.ts`. `OTHER_PLUGIN_LISTS`: further actions that it offers, as JSON.
 */
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { writeSync } from 'node:fs';
import * as grpc from '@grpc/grpc-js';
import {
  BACKUP_ITEM_ACTION,
  LIST_PLUGINS,
  type Method,
  OBJECT_STORE,
} from '../../../src/plugin/protocol/messages.ts';
import { type Decoded, decode, encode } from '../../../src/plugin/protocol/wire.ts';

const method = (path: string, { request, response }: Method, streams = {}) => ({
  path,
  requestStream: false,
  responseStream: false,
  ...streams,
  requestSerialize: (value: Decoded) => encode(request, value),
  requestDeserialize: (bytes: Buffer) => decode(request, bytes),
  responseSerialize: (value: Decoded) => encode(response, value),
  responseDeserialize: (bytes: Buffer) => decode(response, bytes),
});
type Unary = grpc.handleUnaryCall<Decoded, Decoded>;
const answer =
  (made: (request: Decoded) => Decoded): Unary =>
  ({ request }, done) => {
    try {
      done(null, made(request));
    } catch (error) {
      done({ code: grpc.status.UNKNOWN, details: (error as Error).message });
    }
  };
const log = (level: string, message: string): unknown =>
  writeSync(2, `${JSON.stringify({ '@level': level, '@message': message, step: 'x' })}\n`);

const server = new grpc.Server({ 'grpc.max_receive_message_length': 4 << 20 });
const listed = [
  { kind: 'ObjectStore', name: 'other.example.io/memory' },
  { kind: 'BackupItemAction', name: 'other.example.io/first' },
  ...(JSON.parse(process.env.OTHER_PLUGIN_LISTS ?? '[]') as object[]),
];
server.addService(
  { ListPlugins: method('/generated.PluginLister/ListPlugins', LIST_PLUGINS) },
  { ListPlugins: answer(() => ({ plugins: listed })) },
);

server.addService(
  {
    AppliesTo: method('/generated.BackupItemAction/AppliesTo', BACKUP_ITEM_ACTION.AppliesTo),
    Execute: method('/generated.BackupItemAction/Execute', BACKUP_ITEM_ACTION.Execute),
  },
  {
    AppliesTo: answer(() => ({ selector: { includedResources: ['pods'] } })),
    Execute: answer(({ item }) => {
      const { metadata } = JSON.parse((item as Buffer).toString()) as { metadata: Decoded };
      if (metadata.name === 'no-json') return { item: Buffer.from('{') };
      if (metadata.name === 'die') process.kill(process.pid, 'SIGKILL');
      if (metadata.name === 'logs') {
        log('warn', 'a warning');
        log('error', 'an error');
        writeSync(2, 'plain text\n[WARN] with a level\n{"@level":"loud","@message":"?"}\n');
        writeSync(2, `${'x'.repeat(70_000)}\n`);
      }
      // An action of version 1 has no operations, unlike version 2.
      return { item, operationId: 'not-of-version-1' };
    }),
  },
);

const stored = new Map<string, Buffer>();
const configs: Decoded[][] = [];
const settled = (config: unknown): void => {
  const entries = config as Decoded[];
  if (entries.some(({ key, value }) => key === 'region' && value === 'nowhere')) {
    throw new Error('there is no region nowhere');
  }
  configs.push(entries);
};
const put: grpc.handleClientStreamingCall<Decoded, Decoded> = (call, done) => {
  const parts: Buffer[] = [];
  call.on('data', ({ key, body }: Decoded) => {
    if (key === 'refused') {
      done({ code: grpc.status.PERMISSION_DENIED, details: 'the bucket is read-only' });
      return;
    }
    if (key === 'die') process.kill(process.pid, 'SIGKILL');
    if (key === 'stall') call.pause();
    parts.push(body as Buffer);
    stored.set(key as string, Buffer.concat([...parts]));
  });
  call.on('end', () => {
    log('info', 'put has ended');
    done(null, {});
  });
  call.on('cancelled', () => log('info', 'put was cancelled'));
};
const get: grpc.handleServerStreamingCall<Decoded, Decoded> = (call) => {
  const { key } = call.request;
  let sent = 0;
  call.on('cancelled', () => log('info', `get was cancelled after ${sent} parts`));
  const next = (): void => {
    while (!call.cancelled) {
      if (key === 'die' && sent === 3) process.kill(process.pid, 'SIGKILL');
      if (key === 'fails' && sent === 3) {
        call.emit('error', { code: grpc.status.UNKNOWN, details: 'the disk is broken' });
        return;
      }
      if (key === 'stall' && sent === 3) return;
      sent++;
      if (!call.write({ data: Buffer.alloc(16_384, sent) })) {
        call.once('drain', next);
        return;
      }
    }
  };
  const own = stored.get(key as string);
  if (!own) {
    next();
    return;
  }
  if (own.length > 0) call.write({ data: own });
  call.end();
};
const path = (name: string): string => `/generated.ObjectStore/${name}`;
server.addService(
  {
    Init: method(path('Init'), OBJECT_STORE.Init),
    PutObject: method(path('PutObject'), OBJECT_STORE.PutObject, { requestStream: true }),
    GetObject: method(path('GetObject'), OBJECT_STORE.GetObject, { responseStream: true }),
    ObjectExists: method(path('ObjectExists'), OBJECT_STORE.ObjectExists),
    ListObjects: method(path('ListObjects'), OBJECT_STORE.ListObjects),
    DeleteObject: method(path('DeleteObject'), OBJECT_STORE.DeleteObject),
  },
  {
    Init: answer(({ config }) => {
      settled(config);
      return {};
    }),
    PutObject: put,
    GetObject: get,
    ObjectExists: answer(({ key }) => ({ exists: stored.has(key as string) })),
    // Returns its configuration to the test.
    ListObjects: answer(() => ({
      keys: [String(process.pid), String(configs.length), JSON.stringify(configs.at(-1))],
    })),
    DeleteObject: () => undefined,
  },
);
server.addService(
  {
    Shutdown: method('/plugin.GRPCController/Shutdown', { request: {}, response: {} }),
  },
  {
    Shutdown: () => {
      if (process.env.OTHER_PLUGIN_STAYS === undefined) process.exit();
    },
  },
);

const socket = join(process.env.PLUGIN_SOCKETS ?? tmpdir(), `other${process.pid}`);
server.bindAsync(`unix:${socket}`, grpc.ServerCredentials.createInsecure(), (error) => {
  if (error) throw error;
  writeSync(1, `1|2|unix|${socket}|grpc|\n`);
  writeSync(1, 'later lines are read and dropped\n');
});
