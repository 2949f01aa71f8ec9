import { environment } from '../../config/index.ts';
import type { Tone } from '../../kube/index.ts';
import { printText } from '../output/streams.ts';
import { printable } from '../output/terminal.ts';

const CODES: Readonly<Record<Tone, string>> = { good: '32', doubtful: '33', bad: '31', plain: '' };

/** Whether lines can be redrawn in place. */
export const isLive = (): boolean => process.stdout.isTTY && !environment.isDumbTerminal;

/**
 * Colours the text on a terminal, unless NO_COLOR is set. Escapes control characters in the text.
 */
export function paint(text: string, tone: Tone): string {
  const plain = printable(text);
  const code = CODES[tone];
  return code === '' || !isLive() || environment.noColor
    ? plain
    : `\u001b[${code}m${plain}\u001b[0m`;
}

export function printPainted(text: string, tone: Tone): void {
  printText(`${paint(text, tone)}\n`);
}
