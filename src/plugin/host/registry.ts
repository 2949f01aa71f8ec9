import * as fs from 'node:fs/promises';
import { extname, join } from 'node:path';
import {
  asError,
  CodedError,
  isCode,
  type Logger,
  mapLimited,
  messageOf,
} from '../../base/index.ts';
import type { Plugin } from '../contract.ts';
import { LIST_PLUGINS, PLUGIN_LISTER, SERVICES } from '../protocol/messages.ts';
import { PluginProcess, type ProcessOptions } from './plugin-process.ts';

/** All kinds of plugins. */
export type HostedKind = keyof typeof SERVICES;

export interface PluginId {
  readonly kind: HostedKind;
  /** `<DNS subdomain>/<name>` */
  readonly name: string;
}

/** A plugin of a file, or a built-in plugin. */
export interface RegisteredPlugin extends PluginId {
  /** The plugin's file; undefined for a built-in plugin. */
  readonly command: string | undefined;
  readonly builtIn?: Plugin;
}

/** A file, or a plugin of a file, that could not be loaded. */
export interface PluginProblem {
  readonly file: string;
  readonly error: Error;
}

export interface RegistryOptions extends Omit<ProcessOptions, 'command' | 'logger'> {
  /** Folder of plugins. Each executable file at any depth is started once to list its plugins. */
  readonly folder: string | undefined;
  /** Built-in actions; files cannot take their names. */
  readonly builtIn?: readonly Plugin[];
  readonly logger: Logger;
  readonly signal?: AbortSignal;
}

/** Concurrent lists: each starts a process, and a hanging one takes a minute. Our choice. */
const LISTED_AT_ONCE = 4;
/** Time limit of an answer with a few names. Our choice. */
const LIST_MS_MAX = 60_000;
const DEPTH_MAX = 16;
/** Kubernetes: RFC 1123 subdomain. */
const SUBDOMAIN = /^(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$/;

/**
 * All plugins in Velero's order of execution: built-in plugins, then files sorted by name. Velero
 * does not start if one file fails. Here a failed file is a problem, and the others are loaded.
 */
export class PluginRegistry {
  readonly plugins: readonly RegisteredPlugin[];
  readonly problems: readonly PluginProblem[];

  private constructor(plugins: readonly RegisteredPlugin[], problems: readonly PluginProblem[]) {
    this.plugins = plugins;
    this.problems = problems;
  }

  /** Throws if the folder is unreadable. A missing folder has no plugins. Logs all problems. */
  static async load(options: RegistryOptions): Promise<PluginRegistry> {
    const { folder, builtIn = [], logger, signal } = options;
    const problems: PluginProblem[] = [];
    const files = folder === undefined ? [] : await executablesIn(folder, logger);
    const listed = await mapLimited(files, LISTED_AT_ONCE, async (command) => {
      signal?.throwIfAborted();
      try {
        return { command, offers: await offersOf(command, options) };
      } catch (error) {
        signal?.throwIfAborted();
        problems.push({ file: command, error: asError(error) });
        return { command, offers: [] };
      }
    });
    const plugins: RegisteredPlugin[] = builtIn.map((plugin) => ({
      kind: plugin.kind,
      name: plugin.name,
      command: undefined,
      builtIn: plugin,
    }));
    for (const { command, offers } of listed) {
      for (const offer of offers) {
        const error = problemOf(offer, command, plugins);
        if (error) problems.push({ file: command, error });
        else plugins.push({ ...(offer as PluginId), command });
      }
    }
    problems.sort((a, b) => (a.file < b.file ? -1 : 1));
    for (const { file, error } of problems) logger.error({ file }, messageOf(error));
    return new PluginRegistry(plugins, problems);
  }
}

/** Sorted by name, folder by folder. */
async function executablesIn(folder: string, logger: Logger, depth = 0): Promise<string[]> {
  let names: string[];
  try {
    names = (await fs.readdir(folder)).sort();
  } catch (cause) {
    if (depth === 0 && isCode(cause, 'ENOENT')) return [];
    const text = `the plugin folder ${folder} cannot be read: ${messageOf(cause)}`;
    throw new CodedError('PLUGIN_FOLDER', text, { cause });
  }
  const files: string[] = [];
  for (const name of names) {
    const path = join(folder, name);
    const entry = await fs.stat(path).catch(() => undefined);
    if (entry?.isDirectory() === true) {
      // Stops at a symbolic link to a parent folder.
      if (depth < DEPTH_MAX) files.push(...(await executablesIn(path, logger, depth + 1)));
    } else if (entry?.isFile() === true && isExecutable(entry.mode, path)) {
      files.push(path);
    } else {
      logger.warn(
        { file: path },
        'this file of the plugin folder is skipped: it is not executable',
      );
    }
  }
  return files;
}

/** Velero v1.18.3, pkg/plugin/clientmgmt/process/registry.go, executable. */
const isExecutable = (mode: number, path: string): boolean =>
  (mode & 0o111) !== 0 || extname(path).toLowerCase() === '.exe';

interface Offer {
  readonly kind: string;
  readonly name: string;
}

/** Lists the plugins of one file. Ignores the path in the answer: the started file counts. */
async function offersOf(
  command: string,
  { flags, environment, startMsMax, logger, signal }: RegistryOptions,
): Promise<Offer[]> {
  const options = {
    command,
    flags,
    environment,
    logger: () => logger,
    ...(startMsMax !== undefined && { startMsMax }),
  };
  const plugin = await PluginProcess.start(options, signal);
  try {
    const waitMsMax = LIST_MS_MAX;
    const answer = await plugin.call(
      PLUGIN_LISTER,
      'ListPlugins',
      LIST_PLUGINS,
      {},
      { waitMsMax, signal },
    );
    return answer.plugins as Offer[];
  } finally {
    await plugin.stop();
  }
}

function problemOf(
  { kind, name }: Offer,
  command: string,
  plugins: readonly RegisteredPlugin[],
): CodedError | undefined {
  const facts = { command, kind, name };
  if (!Object.hasOwn(SERVICES, kind)) {
    const text = `plugin ${name} of ${command} is of kind ${kind}, which this server does not know: it is left out. A newer server may know it`;
    return new CodedError('PLUGIN_KIND', text, { facts });
  }
  const [subdomain = '', rest = '', ...more] = name.split('/');
  if (!SUBDOMAIN.test(subdomain) || rest === '' || more.length > 0) {
    const text = `the name ${name} of a ${kind} in ${command} is not of the form example.io/name: it is left out`;
    return new CodedError('PLUGIN_NAME', text, { facts });
  }
  const other = plugins.find((plugin) => plugin.kind === kind && plugin.name === name);
  if (!other) return undefined;
  const first = other.command ?? 'this program';
  const text = `${kind} ${name} is in two files: ${first}, which is used, and ${command}, which is not. Remove one of them`;
  return new CodedError('PLUGIN_DUPLICATE', text, { facts: { ...facts, other: first } });
}
