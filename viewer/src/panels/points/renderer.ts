// Points and lines with WebGL2: two buffers, one program.

import type { Matrix } from "./camera";

const vertexShader = `#version 300 es
uniform mat4 view;
uniform float size;
in vec3 place;
in vec4 colour;
out vec4 shade;
void main() {
  gl_Position = view * vec4(place, 1.0);
  gl_PointSize = size;
  shade = colour;
}`;

const fragmentShader = `#version 300 es
precision mediump float;
uniform bool round;
in vec4 shade;
out vec4 pixel;
void main() {
  if (round && length(gl_PointCoord - 0.5) > 0.5) discard;
  pixel = shade;
}`;

interface Shape {
  readonly array: WebGLVertexArrayObject;
  readonly buffers: readonly [WebGLBuffer, WebGLBuffer];
  count: number;
}

export class Renderer {
  private readonly gl: WebGL2RenderingContext;
  private readonly program: WebGLProgram;
  private readonly points: Shape;
  private readonly lines: Shape;

  /** Whether the browser has WebGL2. */
  static isPossible(): boolean {
    const gl = document.createElement("canvas").getContext("webgl2");
    gl?.getExtension("WEBGL_lose_context")?.loseContext(); // a page may have only a few
    return gl !== null;
  }

  /** null where there is no WebGL2. */
  static on(canvas: HTMLCanvasElement): Renderer | null {
    // The picture is kept, so that it can be exported after it was drawn.
    const gl = canvas.getContext("webgl2", { antialias: true, alpha: true, preserveDrawingBuffer: true });
    return gl === null ? null : new Renderer(gl);
  }

  private constructor(gl: WebGL2RenderingContext) {
    this.gl = gl;
    const program = gl.createProgram();
    for (const [type, source] of [
      [gl.VERTEX_SHADER, vertexShader],
      [gl.FRAGMENT_SHADER, fragmentShader],
    ] as const) {
      const shader = gl.createShader(type);
      if (shader === null) throw new Error("the browser has lost its graphics");
      gl.shaderSource(shader, source);
      gl.compileShader(shader);
      gl.attachShader(program, shader);
    }
    gl.bindAttribLocation(program, 0, "place");
    gl.bindAttribLocation(program, 1, "colour");
    gl.linkProgram(program);
    if (!gl.getProgramParameter(program, gl.LINK_STATUS) && !gl.isContextLost()) {
      throw new Error(`the browser cannot draw points: ${gl.getProgramInfoLog(program)}`);
    }
    this.program = program;
    this.points = this.shape();
    this.lines = this.shape();
  }

  private shape(): Shape {
    const { gl } = this;
    const array = gl.createVertexArray();
    const [places, colours] = [gl.createBuffer(), gl.createBuffer()];
    gl.bindVertexArray(array);
    gl.bindBuffer(gl.ARRAY_BUFFER, places);
    gl.enableVertexAttribArray(0);
    gl.vertexAttribPointer(0, 3, gl.FLOAT, false, 0, 0);
    gl.bindBuffer(gl.ARRAY_BUFFER, colours);
    gl.enableVertexAttribArray(1);
    gl.vertexAttribPointer(1, 4, gl.UNSIGNED_BYTE, true, 0, 0);
    return { array, buffers: [places, colours], count: 0 };
  }

  setPoints(places: Float32Array, colours: Uint8Array, count: number): void {
    this.load(this.points, places, colours, count);
  }

  setLines(places: Float32Array, colours: Uint8Array): void {
    this.load(this.lines, places, colours, places.length / 3);
  }

  private load(shape: Shape, places: Float32Array, colours: Uint8Array, count: number): void {
    const { gl } = this;
    for (const [buffer, data] of [
      [shape.buffers[0], places.subarray(0, 3 * count)],
      [shape.buffers[1], colours.subarray(0, 4 * count)],
    ] as const) {
      gl.bindBuffer(gl.ARRAY_BUFFER, buffer);
      gl.bufferData(gl.ARRAY_BUFFER, data, gl.DYNAMIC_DRAW);
    }
    shape.count = count;
  }

  /** Draw; `size` is the diameter of a point in pixels of the screen. */
  draw(view: Matrix, size: number): void {
    const { gl, program } = this;
    gl.viewport(0, 0, gl.drawingBufferWidth, gl.drawingBufferHeight);
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT | gl.DEPTH_BUFFER_BIT);
    gl.enable(gl.DEPTH_TEST);
    gl.depthFunc(gl.LEQUAL); // of points at one place, the newest is seen
    gl.useProgram(program);
    gl.uniformMatrix4fv(gl.getUniformLocation(program, "view"), false, view);
    gl.uniform1f(gl.getUniformLocation(program, "size"), size);
    for (const [shape, mode] of [
      [this.lines, gl.LINES],
      [this.points, gl.POINTS],
    ] as const) {
      gl.uniform1i(gl.getUniformLocation(program, "round"), mode === gl.POINTS && size > 2 ? 1 : 0);
      gl.bindVertexArray(shape.array);
      gl.drawArrays(mode, 0, shape.count);
    }
  }

  /** Give the graphics memory back: a page may have only a few such canvases. */
  end(): void {
    const { gl } = this;
    for (const { array, buffers } of [this.points, this.lines]) {
      gl.deleteVertexArray(array);
      for (const buffer of buffers) gl.deleteBuffer(buffer);
    }
    gl.deleteProgram(this.program);
  }
}
