import { Option } from 'commander';
import { printable } from '../../base/index.ts';
import { environment } from '../../config/index.ts';
import { startLiveLine } from '../output/terminal.ts';
import { type Figures, ProgressTracker, type Sample } from './figures.ts';
import { jsonText, liveText, plainText } from './lines.ts';

export type ProgressMode = 'auto' | 'plain' | 'none' | 'json';

/** `logJson` makes stderr a stream of JSON. `progress` overrides `quiet`. */
export interface ProgressFlags {
  readonly progress?: ProgressMode;
  readonly logJson?: boolean;
  readonly quiet?: boolean;
}

export type ProgressStyle = 'live' | 'lines' | 'json' | 'none';

export const progressOption = (): Option =>
  new Option(
    '--progress <how>',
    'progress on stderr: plain is a line every 30 s, json is one JSON object per line every second, auto is one live line on a terminal and plain elsewhere',
  )
    .choices(['auto', 'plain', 'none', 'json'])
    .default('auto');

/** A live line needs a terminal that can return to the start of a line and clear it. */
export function progressStyle(
  { progress = 'auto', logJson, quiet }: ProgressFlags,
  terminal: { readonly isTTY: boolean; readonly isDumb: boolean },
): ProgressStyle {
  if (progress === 'none' || progress === 'json') return progress;
  if (progress === 'plain') return 'lines';
  if (quiet === true) return 'none';
  if (logJson === true) return 'json';
  return terminal.isTTY && !terminal.isDumb ? 'live' : 'lines';
}

export const styleOf = (flags: ProgressFlags): ProgressStyle =>
  progressStyle(flags, { isTTY: process.stderr.isTTY, isDumb: environment.isDumbTerminal });

export interface Progress {
  /** Clears the line. May be called again. */
  stop(): void;
  /** From the start to the stop. */
  readonly elapsedSeconds: number;
}

const LINE_EVERY_MS = 30_000;
const JSON_EVERY_MS = 1000;
/** Samples between two lines keep the rate recent. */
const SAMPLE_EVERY_MS = 1000;

/** Shows progress on stderr until it is stopped. `operation` is the verb. */
export function startProgress(
  operation: string,
  style: ProgressStyle,
  sample: () => Sample,
): Progress {
  const startMs = performance.now();
  const tracker = new ProgressTracker(startMs);
  const look = (): Figures => tracker.update(sample(), performance.now());
  const stopShowing = show(operation, style, look);
  let elapsedSeconds: number | undefined;
  return {
    stop: () => {
      if (elapsedSeconds !== undefined) return;
      elapsedSeconds = (performance.now() - startMs) / 1000;
      stopShowing();
    },
    get elapsedSeconds() {
      return elapsedSeconds ?? (performance.now() - startMs) / 1000;
    },
  };
}

function show(operation: string, style: ProgressStyle, look: () => Figures): () => void {
  const write = (text: string): void => void process.stderr.write(`${text}\n`);
  switch (style) {
    case 'none':
      return () => undefined;
    case 'live': {
      const live = startLiveLine((width) => liveText(look(), width));
      return () => {
        live.stop();
      };
    }
    case 'lines': {
      const sinceLine = { ms: 0 };
      const stop = every(SAMPLE_EVERY_MS, () => {
        const figures = look();
        sinceLine.ms += SAMPLE_EVERY_MS;
        if (sinceLine.ms < LINE_EVERY_MS) return;
        sinceLine.ms = 0;
        write(printable(plainText(operation, figures)));
      });
      look();
      return stop;
    }
    case 'json': {
      const stop = every(JSON_EVERY_MS, () => {
        write(jsonText('progress', operation, look()));
      });
      look();
      return () => {
        stop();
        write(jsonText('end', operation, look()));
      };
    }
  }
}

function every(ms: number, task: () => void): () => void {
  const timer = setInterval(task, ms);
  timer.unref();
  return () => {
    clearInterval(timer);
  };
}
