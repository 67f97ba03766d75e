# The page in a container: docker build -t specllava . && docker run -p 7860:7860 specllava (with a GPU: --gpus all)
# Small and without CUDA: --build-arg TORCH_INDEX=... with the address of PyTorch's wheels for CPUs.
FROM python:3.12-slim AS build
ARG TORCH_INDEX=
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /venv
WORKDIR /build
COPY requirements.txt ./
# torch first, from the index that is named, if one is; the second call then leaves it alone.
RUN grep '^torch==' requirements.txt > torch.txt \
 && /venv/bin/pip install ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} --requirement torch.txt \
 && /venv/bin/pip install --requirement requirements.txt

FROM python:3.12-slim
RUN useradd --create-home --uid 1000 page
COPY --from=build /venv /venv
COPY . /app
USER 1000
WORKDIR /app
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 GRADIO_TEMP_DIR=/tmp/gradio \
    HF_HOME=/home/page/.cache/huggingface GRADIO_SERVER_NAME=0.0.0.0 GRADIO_SERVER_PORT=7860 \
    MALLOC_ARENA_MAX=2 MALLOC_MMAP_THRESHOLD_=1048576 MALLOC_TRIM_THRESHOLD_=1048576
EXPOSE 7860
HEALTHCHECK --interval=30s --timeout=5s --start-period=90s --retries=3 CMD ["python", "-c", \
    "import urllib.request; urllib.request.urlopen('http://127.0.0.1:7860/health', timeout=4)"]
CMD ["python", "app.py"]
